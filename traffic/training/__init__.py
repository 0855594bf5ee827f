"""Training jobs: from a model's shape and its parallelism to what every rank does."""

from __future__ import annotations

from traffic.training.iteration import training_trace
from traffic.training.job import TrainingJob, compute_rate
from traffic.training.parallelism import Parallelism, RankOrder, Sharding
from traffic.training.presets import (
    ScaledJob,
    published_job,
    scaled_job,
    training_preset_names,
)
from traffic.training.shape import ModelShape, TrainingError
from traffic.training.timeline import Timeline, exposed_communication, linearity, timeline

__all__ = [
    "ModelShape",
    "Parallelism",
    "RankOrder",
    "ScaledJob",
    "Sharding",
    "Timeline",
    "TrainingError",
    "TrainingJob",
    "compute_rate",
    "exposed_communication",
    "linearity",
    "published_job",
    "scaled_job",
    "timeline",
    "training_preset_names",
    "training_trace",
]
