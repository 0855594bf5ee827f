"""Published training jobs, cut down to a number of ranks that can be emulated.

Shapes: Llama 3 (arXiv 2407.21783, table 3), GPT-3 175B (arXiv 2005.14165, table 2.1). The world
and the number of layers shrink; each layer keeps its shape. ``ScaledJob.trace`` multiplies sizes
and times by one factor, so that computation and communication keep their proportion, while what
does not scale, the latencies, weighs more than in the original.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from traffic.replay.demand import rank_totals
from traffic.replay.trace import Trace, scaled
from traffic.training.iteration import training_trace
from traffic.training.job import TrainingJob, compute_rate
from traffic.training.parallelism import Parallelism, RankOrder, Sharding
from traffic.training.shape import ModelShape, TrainingError

RANK_BYTES = 32 * 2**20
"""Bytes that a rank of a scaled job sends per iteration unless told otherwise, within its server
and beyond: seconds of wall time on two cores."""

LAYERS_PER_STAGE = 2
"""Layers of a stage of a scaled job."""


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """A training job as published. ``sharding`` is what is replayed."""

    shape: ModelShape
    tp: int
    pp: int
    dp: int
    gpu: str
    order: RankOrder
    sharding: Sharding
    source: str


@dataclass(frozen=True)
class ScaledJob:
    """A cut-down job and by how much it was cut.

    ``layer_factor`` is layers over published layers, ``rank_factor`` the same for ranks;
    ``scale`` what sizes and times are multiplied by.
    """

    job: TrainingJob
    published: PublishedJob
    scale: float

    @property
    def layer_factor(self) -> float:
        """Layers, as a share of the published ones."""
        return self.job.shape.layers / self.published.shape.layers

    @property
    def rank_factor(self) -> float:
        """Ranks, as a share of the published ones."""
        p = self.published
        return self.job.parallelism.world_size / (p.tp * p.pp * p.dp)

    def trace(self, *, iterations: int = 1) -> Trace:
        """The job's trace with sizes and times multiplied by ``scale``."""
        whole = training_trace(self.job, iterations=iterations)
        return scaled(whole, size=self.scale, time=self.scale)


_LLAMA_70B = ModelShape(80, 8192, 28672, heads=64, kv_heads=8, vocabulary=128_256, sequence=8192)
_LLAMA_8B = ModelShape(32, 4096, 14336, heads=32, kv_heads=8, vocabulary=128_256, sequence=8192)
_LLAMA_405B = ModelShape(
    126, 16384, 53248, heads=128, kv_heads=8, vocabulary=128_256, sequence=8192
)
GPT3_175B = ModelShape(
    96, 12288, 4 * 12288, heads=96, kv_heads=96, vocabulary=50_257, sequence=2048, gated=False,
    tied_embeddings=True,
)  # fmt: skip
"""Its parameters and the volumes of HPN's table 3 are checked in the tests."""

_PUBLISHED = {
    "llama3-405b": PublishedJob(
        _LLAMA_405B, 8, 16, 128, "h100", RankOrder.TP_PP_DP, Sharding.OPTIMIZER,
        "arXiv 2407.21783, table 4: 16,384 H100; parameters stay gathered during an iteration",
    ),
    "llama3-70b": PublishedJob(
        _LLAMA_70B, 8, 4, 64, "h100", RankOrder.TP_PP_DP, Sharding.OPTIMIZER,
        "shape from arXiv 2407.21783, table 3; the parallelism is an assumption",
    ),
    "llama3-8b": PublishedJob(
        _LLAMA_8B, 1, 1, 128, "h100", RankOrder.TP_PP_DP, Sharding.FULL,
        "shape from arXiv 2407.21783, table 3; the parallelism is an assumption",
    ),
    "gpt3-175b": PublishedJob(
        GPT3_175B, 8, 8, 512, "h800", RankOrder.TP_DP_PP, Sharding.NONE,
        "shape from arXiv 2005.14165; parallelism of HPN's table 3 (SIGCOMM'24)",
    ),
}  # fmt: skip


def training_preset_names() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(_PUBLISHED)


def published_job(name: str) -> PublishedJob:
    """The job as published. Raises TrainingError that lists the allowed names."""
    if name not in _PUBLISHED:
        raise TrainingError(f"preset: {name!r}; allowed: {', '.join(training_preset_names())}")
    return _PUBLISHED[name]


def scaled_job(
    name: str,
    *,
    world_size: int,
    gpus_per_server: int,
    pp: int | None = None,
    tp: int | None = None,
    layers_per_stage: int = LAYERS_PER_STAGE,
    micro_batches: int | None = None,
    rank_bytes: int = RANK_BYTES,
    scale: float | None = None,
) -> ScaledJob:
    """A published job on ``world_size`` ranks, of whose servers each has ``gpus_per_server``.

    Tensor parallelism stays within a server unless ``tp`` is given; what is left is shared by
    pipeline stages and replicas, stages at most as many unless ``pp`` is given. Two micro-batches
    per stage unless told otherwise. The vocabulary shrinks as the layers do. The scale is such
    that the busiest rank sends about ``rank_bytes`` per iteration, and at most 1, unless it is
    given. To compare numbers of ranks, give the same ``pp``, ``micro_batches`` and ``scale``: then
    the model is the same and only the replicas differ. Raises TrainingError.
    """
    published = published_job(name)
    if world_size < 1 or gpus_per_server < 1 or world_size % gpus_per_server:
        raise TrainingError(
            f"world_size: {world_size}; allowed: multiples of gpus_per_server, {gpus_per_server}"
        )
    if rank_bytes < 1:
        raise TrainingError(f"rank_bytes: {rank_bytes}; at least 1")
    if tp is None:
        tp = math.gcd(published.tp, gpus_per_server)
    elif tp < 1 or world_size % tp:
        raise TrainingError(f"tp: {tp}; allowed: divisors of {world_size}, the ranks")
    rest = world_size // tp
    if pp is None:
        pp = max(s for s in range(1, math.isqrt(rest) + 1) if rest % s == 0 and s <= published.pp)
    elif pp < 1 or rest % pp or pp > published.shape.layers:
        raise TrainingError(f"pp: {pp}; allowed: divisors of {rest}, the ranks per tp rank")
    shape = published.shape
    layers = pp * min(layers_per_stage, max(1, shape.layers // pp))
    vocabulary = max(1, round(shape.vocabulary * layers / shape.layers))
    job = TrainingJob(
        shape=dataclasses.replace(shape, layers=layers, vocabulary=vocabulary),
        parallelism=Parallelism(
            tp, pp, rest // pp, order=published.order, sharding=published.sharding
        ),
        micro_batches=micro_batches if micro_batches is not None else 2 * pp,
        compute_rate=compute_rate(published.gpu),
    )
    if scale is None:
        scale = fitting_scale(job, rank_bytes)
    return ScaledJob(job, published, scale)


def fitting_scale(job: TrainingJob, rank_bytes: int = RANK_BYTES) -> float:
    """What sizes must be multiplied by so that no rank sends more than that per iteration.

    At most 1.
    """
    sent = max(rank_totals(training_trace(job)))
    return min(1.0, rank_bytes / sent) if sent else 1.0
