"""Training jobs and replayed traces in a report: what ranks did with their time, and linearity."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.report.quantities import MISSING, format_quantity
from testbed.report.tables import Table
from testbed.results import JobResult, RunResult, VariantResult
from traffic.training.timeline import linearity


def job_notes(result: RunResult, *, verification: bool = True) -> list[str]:
    """What was run and at what scale, with the variants that it holds for unless it is all.

    With ``verification`` also how much of the results was compared with numpy's.
    """
    variants: dict[str, list[str]] = {}
    jobs = list(_jobs(result))
    for variant, job in jobs:
        for note in (*job.notes, *filter(None, [job.verified] * verification)):
            variants.setdefault(note, []).append(variant.name)
    return [
        note if len(names) == len(jobs) else f"{', '.join(names)}: {note}"
        for note, names in variants.items()
    ]


def sizes_differ(result: RunResult) -> bool:
    """Whether variants train on different numbers of ranks, so that linearity says something."""
    return len({len(job.ranks) for _, job in _jobs(result) if job.tokens_per_second}) > 1


def job_table(result: RunResult) -> Table:
    """A row per variant, times as shares of an iteration.

    Tokens per second are of each rank. Linearity is that as a share of what a rank does in the
    variant with fewest ranks; none if all have as many.
    """
    jobs = list(_jobs(result))
    trained = [job for _, job in jobs if job.tokens_per_second]
    base = None
    if sizes_differ(result):
        base = min(trained, key=lambda job: len(job.ranks))
    rows = [_row(variant.name, job, base) for variant, job in jobs]
    header = (
        "variant", "ranks", "iteration", "compute", "exposed", "waiting", "tokens/s", "linearity",
    )  # fmt: skip
    return Table(header, rows, frozenset(range(1, len(header))))


def _row(name: str, job: JobResult, base: JobResult | None) -> list[str]:
    duration = job.iteration_time * job.iterations * len(job.ranks)
    shares = (
        sum(rank.compute for rank in job.ranks),
        sum(rank.exposed_communication for rank in job.ranks),
        sum(rank.waiting for rank in job.ranks),
    )
    return [
        name,
        str(len(job.ranks)),
        format_quantity(job.iteration_time, "s"),
        *(format_quantity(share / duration, "share") for share in shares),
        format_quantity(job.tokens_per_second, "1/s").removesuffix("/s"),
        _linearity(job, base),
    ]


def _linearity(job: JobResult, base: JobResult | None) -> str:
    if base is None or job.tokens_per_second is None or base.tokens_per_second is None:
        return MISSING
    ranks, base_ranks = len(job.ranks), len(base.ranks)
    share = linearity(
        job.tokens_per_second * ranks, ranks, base.tokens_per_second * base_ranks, base_ranks
    )
    return format_quantity(share, "share")


def _jobs(result: RunResult) -> Iterator[tuple[VariantResult, JobResult]]:
    for variant in result.variants:
        if variant.job is not None:
            yield variant, variant.job
