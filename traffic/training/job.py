"""A training job: a model, how it is shared, and how fast its GPUs compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traffic.training.parallelism import Parallelism
from traffic.training.shape import ModelShape, TrainingError

PEAK_FLOPS = {"a100": 312e12, "h100": 989e12, "h800": 989e12, "v100": 125e12}
"""FLOP/s of dense 16-bit matrix products (data sheets)."""

MODEL_FLOPS_UTILISATION = 0.41
"""Share of the peak that training reaches: Llama 3 405B on 16K H100 (arXiv 2407.21783, table 4).
That includes exposed communication, so computing alone is somewhat faster: an assumption."""

BUCKET_BYTES = 25 * 2**20
"""Gradients that are reduced together; PyTorch DDP's default bucket_cap_mb."""


def compute_rate(gpu: str, utilisation: float = MODEL_FLOPS_UTILISATION) -> float:
    """FLOP/s of a GPU by name. Raises TrainingError."""
    if gpu not in PEAK_FLOPS:
        raise TrainingError(f"gpu: {gpu!r}; allowed: {', '.join(sorted(PEAK_FLOPS))}")
    if not 0 < utilisation <= 1:
        raise TrainingError(f"utilisation: {utilisation}; allowed: above 0, at most 1")
    return PEAK_FLOPS[gpu] * utilisation


@dataclass(frozen=True)
class TrainingJob:
    """One iteration's work. Raises TrainingError.

    ``micro_batch`` counts sequences, ``itemsize`` bytes of activations, parameters and gradients
    alike, ``bucket`` bytes. With ``scatter_gather`` each tensor parallel rank sends its part of
    the activations to the next stage, which gathers them within its server. ``reshard`` says
    whether fully sharded layers are dropped after use, hence gathered for every pass.
    ``imbalance`` is how much the tokens per expert vary: 0 equal, 1 between none and double.
    ``slowdown`` multiplies the compute times of single ranks.
    """

    shape: ModelShape
    parallelism: Parallelism
    micro_batches: int = 1
    micro_batch: int = 1
    itemsize: int = 2
    compute_rate: float = PEAK_FLOPS["h100"] * MODEL_FLOPS_UTILISATION
    bucket: int = BUCKET_BYTES
    scatter_gather: bool = True
    reshard: bool = True
    imbalance: float = 0.0
    optimizer_seconds: float = 0.0
    slowdown: Mapping[int, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        p, shape = self.parallelism, self.shape
        for name in ("micro_batches", "micro_batch", "itemsize", "bucket"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name}: {getattr(self, name)}; at least 1")
        if self.compute_rate <= 0:
            raise TrainingError(f"compute_rate: {self.compute_rate}; allowed: above 0 FLOP/s")
        if not 0 <= self.imbalance <= 1:
            raise TrainingError(f"imbalance: {self.imbalance}; allowed: 0 to 1")
        if self.optimizer_seconds < 0:
            raise TrainingError(f"optimizer_seconds: {self.optimizer_seconds}; at least 0")
        for name, value, divisor, of in (
            ("layers", shape.layers, p.pp, "pp"),
            ("heads", shape.heads, p.tp, "tp"),
            ("feed_forward", shape.feed_forward, p.tp, "tp"),
            ("hidden", shape.hidden, p.tp, "tp"),
            ("experts", shape.experts, p.ep, "ep"),
        ):
            if value % divisor:
                raise TrainingError(f"{name}: {value}; allowed: multiples of {of}, {divisor}")
        for rank, factor in self.slowdown.items():
            if not 0 <= rank < p.world_size or factor <= 0:
                raise TrainingError(
                    f"stragglers: rank {rank} by {factor}; allowed: ranks 0 to "
                    f"{p.world_size - 1}, factors above 0"
                )

    @property
    def layers_per_stage(self) -> int:
        """Layers of a pipeline stage."""
        return self.shape.layers // self.parallelism.pp

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.shape.sequence

    @property
    def iteration_tokens(self) -> int:
        """Tokens that an iteration of all ranks learns from."""
        return self.parallelism.dp * self.micro_batches * self.micro_batch_tokens

    @property
    def iteration_flops(self) -> float:
        """FLOPs of an iteration of all ranks."""
        return self.shape.iteration_flops(self.iteration_tokens)
