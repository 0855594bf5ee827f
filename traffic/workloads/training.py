"""Iterations of a training job: a published one, cut down, or any model and parallelism."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from testbed.units import Duration, Size
from traffic.plan import Plan
from traffic.replay.trace import Trace, scaled
from traffic.training import (
    ModelShape,
    Parallelism,
    RankOrder,
    Sharding,
    TrainingError,
    TrainingJob,
    compute_rate,
    published_job,
    scaled_job,
    training_trace,
)
from traffic.training.job import BUCKET_BYTES, MODEL_FLOPS_UTILISATION
from traffic.training.presets import LAYERS_PER_STAGE, RANK_BYTES, fitting_scale
from traffic.workloads.base import JobReference, register_workload
from traffic.workloads.traced import (
    TracedParameters,
    TracedWorkload,
    worlds,
)


class ModelParameters(BaseModel):
    """The shape of a transformer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int = Field(ge=1, description="transformer layers")
    hidden: int = Field(ge=1, description="length of a token's vector")
    feed_forward: int | None = Field(
        None, ge=1, description="width of the feed-forward part; default: 4 × hidden"
    )
    heads: int = Field(1, ge=1, description="attention heads")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values; default: heads")
    vocabulary: int = Field(0, ge=0, description="tokens; 0 leaves out the embeddings")
    sequence: int = Field(2048, ge=1, description="tokens of a sequence")
    gated: bool = Field(False, description="feed-forward part of three matrices (SwiGLU)")
    experts: int = Field(1, ge=1, description="experts of each layer")
    experts_per_token: int = Field(1, ge=1, description="experts that a token visits")

    def shape(self) -> ModelShape:
        """The shape. Raises TrainingError."""
        return ModelShape(
            layers=self.layers,
            hidden=self.hidden,
            feed_forward=self.feed_forward or 4 * self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            vocabulary=self.vocabulary,
            sequence=self.sequence,
            gated=self.gated,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
        )


class StragglerParameters(BaseModel):
    """A rank that computes at another speed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(ge=0, description="the job's rank")
    slowdown: float = Field(gt=0, le=100, description="factor of its compute times")


class TrainingParameters(TracedParameters):
    """Which job, how it is shared among ranks, and how much it is scaled down."""

    preset: str | None = Field(
        None, description="a published job: gpt3-175b, llama3-8b, llama3-70b or llama3-405b"
    )
    model: ModelParameters | None = Field(None, description="instead of a preset: any model")
    tp: int | None = Field(None, ge=1, description="ranks that share each layer")
    pp: int | None = Field(None, ge=1, description="pipeline stages")
    dp: int | None = Field(None, ge=1, description="replicas; default: what the ranks allow")
    ep: int = Field(1, ge=1, description="ranks of a data parallel group that share the experts")
    sharding: Sharding | None = Field(
        None, description="what replicas keep only a part of: none, optimizer (ZeRO-1), full (FSDP)"
    )
    order: RankOrder | None = Field(
        None, description="numbering of ranks: tp-dp-pp (Megatron-LM) or tp-pp-dp (Llama 3)"
    )
    layers_per_stage: int = Field(
        LAYERS_PER_STAGE, ge=1, description="layers that a preset's stages are cut down to"
    )
    micro_batches: int | None = Field(
        None, ge=1, description="micro-batches of an iteration; default: 2 per stage"
    )
    micro_batch: int = Field(1, ge=1, description="sequences of a micro-batch")
    bucket: Size = Field(BUCKET_BYTES, gt=0, description="gradients that are reduced together")
    scatter_gather: bool = Field(
        True, description="tensor parallel ranks send their part of activations to the next stage"
    )
    reshard: bool = Field(
        True, description="sharding full: layers are gathered again for the backward pass"
    )
    imbalance: float = Field(0.0, ge=0, le=1, description="how much the tokens per expert vary")
    gpu: str | None = Field(None, description="a100, h100, h800 or v100; default: the preset's")
    utilisation: float = Field(
        MODEL_FLOPS_UTILISATION, gt=0, le=1, description="share of the GPU's peak FLOP/s"
    )
    optimizer_time: Duration = Field(0.0, description="of the optimizer's step, before scaling")
    stragglers: tuple[StragglerParameters, ...] = Field((), description="ranks that are slower")
    scale: float | None = Field(
        None, gt=0, le=1, description="what sizes and times are multiplied by; default: rank_bytes"
    )
    rank_bytes: Size = Field(
        RANK_BYTES, gt=0, description="without scale: what the busiest rank sends per iteration"
    )
    iterations: int = Field(1, ge=1, le=1000, description="iterations, one after the other")


@register_workload
class Training(TracedWorkload):
    """Computations, collectives and transfers of all ranks."""

    name = "training"
    Parameters = TrainingParameters

    def trace(self, parameters: Any, ranks: int, gpus_per_server: int, seed: int) -> Trace:
        """The job's trace with sizes and times multiplied by its scale."""
        p: TrainingParameters = parameters
        job, scale = _job(p, ranks, gpus_per_server, seed)
        return scaled(training_trace(job, iterations=p.iterations), size=scale, time=scale)

    def job(self, plan: Plan) -> JobReference:
        """Tokens of the job's iteration, and by how much it was cut down."""
        p: Any = plan.parameters
        jobs = [
            _job(p, len(order), per_server, plan.seed)
            for order, per_server in worlds(p, plan.jobs, plan.servers)
        ]
        scale = jobs[0][1]
        notes = dict.fromkeys(_description(p, job, scale) for job, scale in jobs)
        return JobReference(
            ranks=self.arrangement(plan).ranks,
            iterations=p.iterations,
            tokens=sum(job.iteration_tokens for job, _ in jobs),
            size_scale=scale,
            time_scale=scale,
            notes=tuple(notes),
            verified=self.verification_note(plan),
        )


@lru_cache(maxsize=4)
def _job(
    p: TrainingParameters, ranks: int, per_server: int, seed: int
) -> tuple[TrainingJob, float]:
    """The job and its scale. Raises TrainingError."""
    if (p.preset is None) == (p.model is None):
        raise TrainingError("preset: give either a preset or a model")
    slower = [straggler.rank for straggler in p.stragglers]
    for rank in slower:
        if slower.count(rank) > 1:
            raise TrainingError(f"stragglers: rank {rank} is listed twice")
    job = _published(p, ranks, per_server) if p.model is None else _own(p, p.model, ranks)
    job = replace(
        job,
        micro_batch=p.micro_batch,
        bucket=p.bucket,
        scatter_gather=p.scatter_gather,
        reshard=p.reshard,
        imbalance=p.imbalance,
        optimizer_seconds=p.optimizer_time,
        slowdown={s.rank: s.slowdown for s in p.stragglers},
        seed=seed,
    )
    return job, fitting_scale(job, p.rank_bytes) if p.scale is None else p.scale


def _published(p: TrainingParameters, ranks: int, per_server: int) -> TrainingJob:
    assert p.preset is not None
    published = published_job(p.preset)
    job = scaled_job(
        p.preset,
        world_size=_ranks(p, ranks),
        gpus_per_server=per_server,
        tp=p.tp,
        pp=p.pp,
        layers_per_stage=p.layers_per_stage,
        micro_batches=p.micro_batches,
        scale=1.0,
    ).job
    parallelism = replace(
        job.parallelism,
        ep=p.ep,
        order=p.order or published.order,
        sharding=p.sharding or published.sharding,
    )
    rate = compute_rate(p.gpu or published.gpu, p.utilisation)
    return replace(job, parallelism=parallelism, compute_rate=rate)


def _ranks(p: TrainingParameters, ranks: int) -> int:
    """How many ranks a preset's job has: all, unless dp says otherwise."""
    if p.dp is None:
        return ranks
    if p.pp is None or p.tp is None:
        raise TrainingError("dp: with a preset give tp and pp as well")
    wanted = p.tp * p.pp * p.dp
    if wanted > ranks:
        raise TrainingError(f"dp: {p.tp} × {p.pp} × {p.dp} ranks; allowed: at most {ranks}")
    return wanted


def _own(p: TrainingParameters, model: ModelParameters, ranks: int) -> TrainingJob:
    tp, pp = p.tp or 1, p.pp or 1
    dp = p.dp if p.dp is not None else ranks // (tp * pp)
    if tp * pp * dp > ranks or dp < 1:
        raise TrainingError(f"tp: {tp} × {pp} × {p.dp or 1} ranks; allowed: at most {ranks}")
    return TrainingJob(
        shape=model.shape(),
        parallelism=Parallelism(
            tp, pp, dp, p.ep,
            order=p.order or RankOrder.TP_DP_PP, sharding=p.sharding or Sharding.NONE,
        ),
        micro_batches=p.micro_batches or 2 * pp,
        compute_rate=compute_rate(p.gpu or "h100", p.utilisation),
    )  # fmt: skip


def _description(p: TrainingParameters, job: TrainingJob, scale: float) -> str:
    """What is emulated, and what part of the original it is."""
    shape, parallelism = job.shape, job.parallelism
    text = (
        f"{p.preset or 'model'}: {shape.layers} layers, {parallelism.world_size} ranks "
        f"(tp {parallelism.tp}, pp {parallelism.pp}, dp {parallelism.dp}, ep {parallelism.ep}, "
        f"sharding {parallelism.sharding}), {job.micro_batches} micro-batches, "
        f"{p.iterations} iterations; sizes and times × {scale:.4g}"
    )
    if p.preset is not None:
        published = published_job(p.preset)
        ranks = published.tp * published.pp * published.dp
        text += f"; published: {published.shape.layers} layers, {ranks} ranks"
    return text
