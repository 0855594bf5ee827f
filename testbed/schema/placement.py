"""Sections `server` and `placement`: the GPU servers, and which GPU runs which rank."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from testbed import registries
from testbed.schema.section import Section, known
from testbed.schema.values import Integer
from testbed.units import BitRate, Duration


class Server(Section):
    """`server`: GPUs, NICs, NVLinks and PCIe of every GPU server, from a preset or from nvidia-smi.

    Rates are one direction, in place of the preset's, or of what nvidia-smi does not print.
    """

    preset: str | None = Field(default=None, description="a server that people have, by name")
    nvidia_smi: str | None = Field(
        default=None,
        min_length=1,
        description="file with the output of nvidia-smi topo -m, from the current directory",
    )
    nic_rate: BitRate | None = Field(default=None, description="all ports of a NIC")
    pcie_rate: BitRate | None = Field(default=None, description="payload of a PCIe link")
    smp_rate: BitRate | None = Field(default=None, description="between sockets")
    nvlink_rate: BitRate | None = Field(default=None, description="one NVLink")
    nvlink_latency: Duration | None = Field(
        default=None, description="between two GPUs of a server; default: 1 us"
    )

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, value: str | None) -> str | None:
        return value if value is None else known(value, registries.server_names())

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.preset is None) == (self.nvidia_smi is None):
            given = "neither" if self.preset is None else "both"
            raise ValueError(f"{given} of preset and nvidia_smi given; allowed: one of them")
        return self


class PlacedJob(Section):
    """One entry of `placement.jobs`."""

    name: str = Field(min_length=1, max_length=40)
    size: Integer | None = Field(
        default=None, ge=1, description="ranks; default: as many as slots lists, else all GPUs"
    )
    slots: tuple[Integer, ...] = Field(
        default=(), description="strategy explicit: the GPU, by its number, of each rank"
    )


class Placement(Section):
    """`placement`: which GPU runs which rank of which job.

    The ranks that a workload speaks of are those of the jobs, counted through one after the other.
    """

    strategy: str = Field(default="packed", description="by name: which GPUs the ranks run on")
    size: Integer | None = Field(
        default=None, ge=1, description="ranks of the only job; default: all GPUs"
    )
    slots: tuple[Integer, ...] = Field(
        default=(), description="strategy explicit: the GPU of each rank of the only job"
    )
    jobs: tuple[PlacedJob, ...] = Field(default=(), description="instead: several jobs")

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, value: str) -> str:
        return known(value, registries.placement_names())

    @model_validator(mode="after")
    def _fitting_fields(self) -> Self:
        if self.jobs and (self.size is not None or self.slots):
            raise ValueError("size or slots beside jobs; allowed: those of each job instead")
        for job in self.listed:
            if (self.strategy == "explicit") != bool(job.slots):
                raise ValueError(
                    f"strategy {self.strategy!r} {'with' if job.slots else 'without'} slots; "
                    "allowed: slots with strategy 'explicit', and only with it"
                )
        if len(self.jobs) > 1 and any(job.size is None and not job.slots for job in self.jobs):
            raise ValueError("several jobs, one of them without size; allowed: a size for each")
        return self

    @property
    def listed(self) -> tuple[PlacedJob, ...]:
        """All jobs; at least one."""
        return self.jobs or (PlacedJob(name="job", size=self.size, slots=self.slots),)
