"""A whole scenario file: its sections, variants and expectations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, PrivateAttr, SerializeAsAny, field_validator, model_validator

from testbed import registries
from testbed.expect import NAME, RESERVED_NAMES
from testbed.schema.faults import Faults
from testbed.schema.nic import Nic
from testbed.schema.placement import Placement, Server
from testbed.schema.section import Choice, Section, choose
from testbed.schema.switch import Switch
from testbed.schema.values import Dilation, Integer, Interval
from testbed.units import Duration
from traffic.plan import WorkloadParameters


class TopologyChoice(Choice):
    """`topology`: a family and its parameters."""

    kind: str

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        return choose(value, "kind", registries.topology_parameters())


class RoutingChoice(Choice):
    """`routing`: a scheme and its parameters."""

    scheme: str

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        return choose(value, "scheme", registries.scheme_parameters())


class WorkloadChoice(Choice):
    """`workload`: which messages are sent, by a family and its parameters."""

    kind: str
    parameters: SerializeAsAny[WorkloadParameters]

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        return choose(value, "kind", registries.workload_parameters())


class Telemetry(Section):
    """`telemetry`: sampling of queue depths."""

    interval: Interval = Field(
        default="auto", description="emulated time between samples of every port"
    )


class Variant(Section):
    """One entry of `variants`: what differs from the file, by dotted path."""

    name: str
    set: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _usable_in_expectations(cls, value: str) -> str:
        if not NAME.fullmatch(value) or value in RESERVED_NAMES or len(value) > 40:
            raise ValueError(
                f"{value!r} cannot name a variant: letters, digits, '_' and '-' between them, "
                f"at most 40, none of {', '.join(sorted(RESERVED_NAMES))}"
            )
        return value


class Scenario(Section):
    """One scenario, or one variant of it: everything that decides a run, except the machine."""

    name: str = Field(pattern=re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"))
    description: str = Field(default="", max_length=2000)
    seed: Integer = Field(default=1, ge=0, lt=2**63)
    dilation: Dilation = Field(default="auto", description="wall seconds per emulated second")
    time_limit: Duration = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="emulated time after which an unfinished run is stopped",
    )
    topology: TopologyChoice
    server: Server | None = Field(default=None, description="null: as the topology alone says")
    placement: Placement = Field(default_factory=Placement)
    switch: Switch = Switch()
    routing: RoutingChoice = Field(default_factory=lambda: RoutingChoice(scheme="ecmp"))  # type: ignore[call-arg]
    nic: Nic = Field(default_factory=Nic)
    workload: WorkloadChoice
    faults: Faults = Faults()
    capture: tuple[str, ...] = Field(default=(), description="interfaces to record a pcap of")
    telemetry: Telemetry = Telemetry()
    variants: tuple[Variant, ...] = ()
    expect: tuple[str, ...] = ()

    _document: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Validate a plain mapping and remember it. Raises pydantic's ValidationError."""
        scenario = cls.model_validate(document)
        scenario._document = dict(document)
        return scenario

    @property
    def document(self) -> Mapping[str, Any]:
        """The mapping it was made from, before defaults and units."""
        return self._document

    @field_validator("variants")
    @classmethod
    def _distinct(cls, value: tuple[Variant, ...]) -> tuple[Variant, ...]:
        names = [variant.name for variant in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} names two variants")
        return value
