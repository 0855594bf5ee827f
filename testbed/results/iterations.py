"""Several runs of one variant as one result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from testbed.results.metrics import compute_metrics
from testbed.results.schema import CollectiveResult, RankResult, VariantResult


def merge_iterations(results: Sequence[VariantResult]) -> VariantResult:
    """The run with the worst verdict, the first of such, with the mean time of all.

    A collective's time is the mean, as nccl-tests has it, and None if one did not come to its end;
    wrong elements are those of all runs. Flows, ports and the rest are that one run's.
    """
    if len(results) == 1:
        return results[0]
    shown = max(results, key=lambda result: result.fidelity.verdict.severity)
    merged = shown.model_copy(
        update={
            "collective": _mean([result.collective for result in results]),
            "ranks": [_with_all_wrong(rank, results) for rank in shown.ranks],
        }
    )
    return merged.model_copy(update={"metrics": compute_metrics(merged)})


def _mean(collectives: Sequence[CollectiveResult | None]) -> CollectiveResult | None:
    known = [collective for collective in collectives if collective is not None]
    if len(known) < len(collectives):
        return None
    times = [collective.time for collective in known]
    return known[0].model_copy(update={"time": statistics.fmean(times), "times": times})


def _with_all_wrong(rank: RankResult, results: Sequence[VariantResult]) -> RankResult:
    counts = [
        other.wrong_elements
        for result in results
        for other in result.ranks
        if other.rank == rank.rank and other.wrong_elements is not None
    ]
    return rank.model_copy(update={"wrong_elements": sum(counts) if counts else None})
