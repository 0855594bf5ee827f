"""The 1F1B pipeline schedule (PipeDream-Flush; Narayanan et al., SC'21, section 2.2.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """The forward or backward pass of one micro-batch through one stage."""

    forward: bool
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[PipelineStep]:
    """The passes of a stage in order: warm-up, alternation, cool-down.

    A stage keeps at most ``stages - stage`` micro-batches in memory.
    """
    warm_up = min(micro_batches, stages - stage - 1)
    steps = [PipelineStep(True, i) for i in range(warm_up)]
    for backward in range(micro_batches):
        forward = warm_up + backward
        if forward < micro_batches:
            steps.append(PipelineStep(True, forward))
        steps.append(PipelineStep(False, backward))
    return steps


def bubble_fraction(stages: int, micro_batches: int) -> float:
    """Share of an iteration that a stage idles: (p - 1) / (m + p - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)
