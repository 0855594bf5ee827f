"""Closed forms of what a training job communicates, in bytes."""

from __future__ import annotations

from traffic.training.job import TrainingJob


def activation_bytes(job: TrainingJob) -> int:
    """The vectors of a micro-batch: what one tensor parallel all-reduce adds up."""
    return job.micro_batch_tokens * job.shape.hidden * job.itemsize


def stage_transfer_bytes(job: TrainingJob) -> int:
    """What one rank sends to the next stage per micro-batch."""
    total = activation_bytes(job)
    return -(-total // job.parallelism.tp) if job.scatter_gather else total


def tensor_parallel_bytes(job: TrainingJob) -> int:
    """Input of all tensor parallel all-reduces of a rank in an iteration.

    Two per layer and micro-batch in each direction (Shoeybi et al., arXiv 1909.08053, section 3).
    """
    if job.parallelism.tp == 1:
        return 0
    return 4 * job.layers_per_stage * job.micro_batches * activation_bytes(job)


def dense_layer_bytes(job: TrainingJob) -> int:
    """A rank's parameters, or gradients, of one layer that all its replicas share."""
    shape, p = job.shape, job.parallelism
    parameters = shape.attention_parameters // p.tp + shape.router_parameters
    if shape.experts == 1:
        parameters += shape.expert_parameters // p.tp
    return parameters * job.itemsize


def expert_layer_bytes(job: TrainingJob) -> int:
    """A rank's parameters, or gradients, of one layer's experts; 0 without experts."""
    shape, p = job.shape, job.parallelism
    if shape.experts == 1:
        return 0
    return shape.experts // p.ep * (shape.expert_parameters // p.tp) * job.itemsize


def embedding_bytes(job: TrainingJob, stage: int) -> int:
    """A rank's embedding tables: the first stage's, the last stage's."""
    p = job.parallelism
    tables = int(stage == 0) + int(stage == p.pp - 1)
    if job.shape.tied_embeddings:
        tables = min(tables, 1)
    return tables * -(-job.shape.embedding_parameters // p.tp) * job.itemsize


def gradient_bytes(job: TrainingJob, stage: int) -> int:
    """All gradients of a rank: the input of its data parallel all-reduces of an iteration."""
    layer = dense_layer_bytes(job) + expert_layer_bytes(job)
    return job.layers_per_stage * layer + embedding_bytes(job, stage)


def expert_bytes(job: TrainingJob) -> int:
    """What a rank sends to all experts, itself included, per layer and micro-batch, one way."""
    return activation_bytes(job) * job.shape.experts_per_token
