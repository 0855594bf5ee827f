"""The chart of ranks over time: what each computed, sent, received, and when it waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.report.canvas import GREY, Sheet, finish_time_axis
from testbed.report.findings import is_tie
from testbed.report.quantities import format_quantity
from testbed.report.timeaxis import PADDING, FoldedAxis
from testbed.results import Activity, RankTimeline, RunResult, TimelineResult, VariantResult

MOST_PANELS = 3
"""Variants drawn."""

MOST_RANKS = 16
"""Ranks drawn of a variant: those that wait longest, and those that wait least."""

BUSY = 0.02
"""Share of the time up to which waiting is not worth a sentence."""

WAIT_COLOUR = "#f6d5c8"

_LANES: tuple[tuple[tuple[Activity, ...], str, str], ...] = (
    # activities, label, colour; from the top of a rank's band
    ((Activity.COMPUTE,), "compute", "#0072B2"),
    ((Activity.NVLINK_SEND, Activity.NVLINK_RECEIVE), "NVLink", "#CC79A7"),
    ((Activity.SEND,), "send", "#E69F00"),
    ((Activity.RECEIVE,), "receive", "#009E73"),
)


def timeline_finding(result: RunResult) -> str:
    """How much ranks compute, or their NICs are busy, and who waits longest, and for whom."""
    variants = drawn_variants(result)
    sentence = "; ".join(filter(None, [_headline(variants), _longest_wait(variants)]))
    return sentence[:1].upper() + sentence[1:]


def _headline(variants: Sequence[VariantResult]) -> str:
    """ "Ranks compute 56 % of the time (ecmp), 59 % (te)"; of NICs, where no rank computes."""
    computing = [_computing_share(variant) for variant in variants]
    if max(computing) >= BUSY:
        what, shares = "ranks compute", computing
    else:
        known = [(variant, _busy_share(variant)) for variant in variants]
        variants = [variant for variant, share in known if share is not None]
        what, shares = "NICs receive data", [share for _, share in known if share is not None]
    if not shares:
        return ""
    if len(variants) == 1:
        return f"{what} {_percent(shares[0])} of the time"
    cells = [f"{_percent(s)} ({v.name})" for s, v in zip(shares, variants, strict=True)]
    return f"{what} for these shares of the time: {', '.join(cells)}"


def _computing_share(variant: VariantResult) -> float:
    """Mean over ranks."""
    timeline = variant.timeline
    assert timeline is not None
    mean = sum(rank.shares["compute"] for rank in timeline.ranks) / len(timeline.ranks)
    return timeline.share(mean)


def _busy_share(variant: VariantResult) -> float | None:
    """Mean, over the NICs that get any, of the share of time in which their link brings data."""
    assert variant.timeline is not None
    shares = [
        variant.timeline.share(port.data_bytes * 8 / port.rate)
        for port in variant.ports
        if port.tiers == (1, 0) and port.data_bytes
    ]
    return sum(shares) / len(shares) if shares else None


def _longest_wait(variants: Sequence[VariantResult]) -> str:
    """Of all ranks of all variants the one that waits for the largest share of the time."""
    timelines = [(v.name, v.timeline) for v in variants if v.timeline is not None]
    share, name, longest, timeline = max(
        (
            (timeline.share(rank.waiting), name, rank, timeline)
            for name, timeline in timelines
            for rank in timeline.ranks
        ),
        key=lambda candidate: candidate[0],
    )
    where = f" with {name}" if len(variants) > 1 else ""
    if share < BUSY:
        return "no rank waits for another"
    least = min(timeline.ranks, key=lambda rank: rank.waiting)
    fewest = timeline.share(least.waiting)
    if is_tie(share, fewest):
        return f"every rank waits {_percent(share)}{where}"
    return (
        f"rank {longest.rank} waits longest{where} ({_percent(share)}{_mostly_for(longest)}), "
        f"rank {least.rank} least ({_percent(fewest)})"
    )


def _mostly_for(rank: RankTimeline) -> str:
    """ ", mostly for rank 2's messages", where one rank accounts for half of the wait or more."""
    peer, seconds = max(rank.waits_for.items(), key=lambda item: item[1], default=(-1, 0.0))
    if seconds < 0.5 * rank.waiting:
        return " for several others"
    mostly = "" if seconds > 0.98 * rank.waiting else "mostly "
    return f", {mostly}for rank {peer}'s messages"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def drawn_variants(result: RunResult) -> list[VariantResult]:
    """The first variants that have a timeline; of a sweep over sizes, each algorithm's largest."""
    known = [variant for variant in result.variants if variant.timeline is not None]
    if len(known) > MOST_PANELS:
        largest: dict[object, VariantResult] = {}
        for variant in known:
            key = variant.overrides.get("workload.algorithm", variant.name)
            best = largest.get(key)
            if best is None or _size(variant) > _size(best):
                largest[key] = variant
        known = list(largest.values())
    return known[:MOST_PANELS]


def _size(variant: VariantResult) -> int:
    return variant.collective.bytes if variant.collective else 0


def timeline_chart(result: RunResult) -> Any | None:
    """A band per rank, a panel per variant; None where no rank did anything."""
    variants = drawn_variants(result)
    if not variants:
        return None
    timelines = [v.timeline for v in variants if v.timeline is not None]
    chosen = [_chosen(timeline) for timeline in timelines]
    rows = max(len(ranks) for ranks in chosen)
    panel = max(0.26 * min(rows, 8) + 0.17 * max(rows - 8, 0), 1.2)
    sheet = Sheet.of(
        timeline_finding(result),
        rows=len(variants),
        height=(panel + 0.35) * len(variants) + 0.85,
    )
    axis = _axis(timelines)
    panels = sheet.panels(len(variants))
    for variant, timeline, ranks, ax in zip(variants, timelines, chosen, panels, strict=True):
        _panel(ax, timeline, ranks, axis)
        left_out = len(timeline.ranks) - len(ranks)
        more = f"; {left_out} ranks left out" if left_out else ""
        title = f"{variant.name}: {format_quantity(timeline.duration, 's')}{more}"
        ax.set_title(title, fontsize=10, loc="left", color=GREY, pad=3)
    finish_time_axis(panels, axis)
    for ax in panels[:-1]:
        ax.set_xticklabels([])
    handles = _legend(timelines)
    sheet.figure.legend(
        handles=handles, loc="lower center", ncols=len(handles), fontsize=9, frameon=False,
        handlelength=1.2, columnspacing=1.4, borderaxespad=0.15,
    )  # fmt: skip
    sheet.place(left=0.075, right=0.985, hspace=0.35 / panel, bottom=0.75)
    return sheet.figure


def _chosen(timeline: TimelineResult) -> list[RankTimeline]:
    if len(timeline.ranks) <= MOST_RANKS:
        return list(timeline.ranks)
    by_wait = sorted(timeline.ranks, key=lambda rank: rank.waiting)
    few = by_wait[: MOST_RANKS // 2] + by_wait[-MOST_RANKS // 2 :]
    return sorted(few, key=lambda rank: rank.rank)


def _axis(timelines: Sequence[TimelineResult]) -> FoldedAxis:
    """From the first beginning to the last end; nothing is folded, as waiting is what counts."""
    begin = min(timeline.begin for timeline in timelines)
    end = max(timeline.end for timeline in timelines)
    begin = 0.0 if begin < 0.1 * end else begin
    pad = PADDING * max(end - begin, 1e-9)
    return FoldedAxis([(begin, end + pad)], 0.0)


def _panel(
    ax: Any, timeline: TimelineResult, ranks: Sequence[RankTimeline], axis: FoldedAxis
) -> None:
    lanes = _present(ranks)
    height = 0.84 / max(len(lanes), 1)
    origin = axis.segments[0][0]
    for place, rank in enumerate(ranks):
        band = (place - 0.42, 0.84)
        waits = [(start - origin, end - start) for start, end in rank.waits(timeline.begin)]
        ax.broken_barh(waits, band, color=WAIT_COLOUR, linewidth=0, zorder=2)
        for number, (activities, _, colour) in enumerate(lanes):
            top = place - 0.42 + number * height
            for activity in activities:
                times = rank.spans.get(activity, [])
                bars = [
                    (begin - origin, end - begin)
                    for begin, end in zip(times[::2], times[1::2], strict=True)
                ]
                ax.broken_barh(bars, (top, height), color=colour, linewidth=0.3, zorder=3)
    ax.set_ylim(len(ranks) - 0.5, -0.5)
    ax.set_yticks(range(len(ranks)), [f"rank {rank.rank}" for rank in ranks], fontsize=8.5)
    ax.tick_params(axis="y", length=0)


def _present(ranks: Sequence[RankTimeline]) -> list[tuple[tuple[Activity, ...], str, str]]:
    present = {activity for rank in ranks for activity in rank.spans}
    return [lane for lane in _LANES if present.intersection(lane[0])]


def _legend(timelines: Sequence[TimelineResult]) -> list[Any]:
    from matplotlib.patches import Patch

    lanes = _present([rank for timeline in timelines for rank in timeline.ranks])
    handles = [Patch(facecolor=colour, label=label) for _, label, colour in lanes]
    return [*handles, Patch(facecolor=WAIT_COLOUR, label="wait for another rank")]
