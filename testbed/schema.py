"""The schema of a scenario file: sections, fields, defaults and allowed values.

Values are real units of the emulated hardware: rates in bit/s, durations in seconds, sizes in bytes
once parsed. Sections that choose a strategy (topology, routing, workload) hold its name and, beside
it, the parameters that the strategy itself declares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    SerializeAsAny,
    Strict,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from testbed import registries
from testbed.expect import NAME, RESERVED_NAMES
from testbed.registries import suggestion
from testbed.units import BitRate, Duration, Size, parse_duration, parse_size
from traffic.plan import WorkloadParameters

DILATION_LIMIT = 1e9
"""At this dilation a 400 Gb/s link carries 400 bit/s: nothing would ever finish."""

Integer = Annotated[int, Strict()]
"""A whole number; unlike pydantic's default, true, 1.0 and "1" are none."""

Real = Annotated[float, Strict()]
"""A number; true and "0.5" are none."""


def _parse_dilation(value: Any) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is neither 'auto' nor a number above 0")
    if not (0 < value <= DILATION_LIMIT and math.isfinite(value)):
        raise ValueError(f"{value!r} must be 'auto' or above 0 and at most {DILATION_LIMIT:.0e}")
    return float(value)


def _parse_limit(value: Any) -> int | None:
    if value is None or value == "infinite":
        return None
    size = parse_size(value)
    if size == 0:
        raise ValueError(f"{value!r} must be above 0, or 'infinite'")
    return size


def _parse_interval(value: Any) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    interval = parse_duration(value)
    if interval == 0:
        raise ValueError(f"{value!r} must be above 0, or 'auto'")
    return interval


Dilation = Annotated[float | Literal["auto"], PlainValidator(_parse_dilation)]
BufferLimit = Annotated[int | None, PlainValidator(_parse_limit)]
Interval = Annotated[float | Literal["auto"], PlainValidator(_parse_interval)]


def check_fields(model: type[BaseModel], value: Any) -> Any:
    """Refuse what is not a mapping of the model's fields, with the nearest name as a hint."""
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping of fields to values")
    for key in value:
        if key not in model.model_fields:
            raise PydanticCustomError(
                "unknown_field",
                "unknown field; {hint}",
                {"field": str(key), "hint": suggestion(str(key), model.model_fields)},
            )
    return value


class Section(BaseModel):
    """Base of every section: immutable, no field beyond those declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        return check_fields(cls, value)


def _choose(value: Any, selector: str, registered: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """Split ``{selector: name, **parameters}`` and validate the parameters by the named model."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping with {selector!r}")
    parameters = dict(value)
    name = parameters.pop(selector, None)
    if not isinstance(name, str) or name not in registered:
        raise PydanticCustomError(
            "unknown_choice",
            "{name} is not known; {hint}",
            {"field": selector, "name": repr(name), "hint": suggestion(str(name), registered)},
        )
    model = registered[name]
    check_fields(model, parameters)
    return {selector: name, "parameters": model.model_validate(parameters)}


class _Choice(BaseModel):
    """A strategy by name, with that strategy's own parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: SerializeAsAny[BaseModel]

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in type(self).model_fields}
        parameters: BaseModel = own.pop("parameters")
        return {**own, **parameters.model_dump(mode="json")}


class TopologyChoice(_Choice):
    """`topology`: a family and its parameters."""

    kind: str

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        return _choose(value, "kind", registries.topology_parameters())


class RoutingChoice(_Choice):
    """`routing`: a scheme and its parameters."""

    scheme: str

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        return _choose(value, "scheme", registries.scheme_parameters())


def _known(value: str, allowed: list[str]) -> str:
    """The name, if it is one of these."""
    if value not in allowed:
        raise ValueError(f"{value!r} is not known; {suggestion(value, allowed)}")
    return value


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
        return value if value is None else _known(value, registries.server_names())

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

    strategy: str = "packed"
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
        return _known(value, registries.placement_names())

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


class WorkloadChoice(_Choice):
    """`workload`: which messages are sent, by a family and its parameters."""

    kind: str
    parameters: SerializeAsAny[WorkloadParameters]

    @model_validator(mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        return _choose(value, "kind", registries.workload_parameters())


class Buffer(Section):
    """`switch.buffer`: who may queue how much."""

    policy: Literal["static"] = "static"
    limit: BufferLimit = Field(
        default=1024 * 1024,
        description="bytes that one port may hold, or 'infinite' (None when parsed)",
    )


class Ecn(Section):
    """`switch.ecn`: marking."""

    threshold: Size | None = Field(
        default=None,
        description="a packet that finds more bytes queued than this is marked CE; null: never",
    )


class Switch(Section):
    """`switch`: the buffer management of every switch."""

    buffer: Buffer = Buffer()
    ecn: Ecn = Ecn()


class Nic(Section):
    """`nic`: attributes of every queue pair; names and ranges as in libibverbs' ibv_qp_attr."""

    transport: Literal["rc", "uc"] = "rc"
    recovery: str | None = Field(
        default=None,
        description="loss recovery; default go-back-n for rc, and none for uc, which has none",
    )
    path_mtu: Literal[256, 512, 1024, 2048, 4096] = Field(default=4096, description="payload bytes")
    timeout: Integer = Field(
        default=14, ge=0, le=31, description="local ACK timeout 4.096 us * 2^n; 0: never"
    )
    retry_cnt: Integer = Field(default=7, ge=0, le=7)
    rnr_retry: Integer = Field(default=7, ge=0, le=7, description="7: without end")
    min_rnr_timer: Integer = Field(default=12, ge=0, le=31, description="code of the RNR NAK timer")
    ack_interval: Integer = Field(
        default=64,
        ge=1,
        le=2**22,
        description="packets after which an ACK is requested within a message",
    )
    send_window: Integer | None = Field(
        default=None,
        ge=1,
        le=2**22,
        description="unacknowledged packets per queue pair; null: no limit",
    )
    qps_per_connection: Integer = Field(
        default=1, ge=1, le=128, description="queue pairs that share the messages of a connection"
    )
    message_strategy: Literal["split", "round-robin", "least-outstanding"] = Field(
        default="round-robin",
        description="split: every message over all queue pairs; round-robin: whole messages in "
        "turn; least-outstanding: whole messages on the one with the fewest bytes outstanding",
    )
    source_port_policy: Literal["per-qp", "per-pair", "per-flowlet", "per-packet"] = Field(
        default="per-qp",
        description="what the UDP source port, and with it an ECMP path, depends on",
    )
    source_ports: Integer = Field(
        default=16,
        ge=1,
        le=256,
        description="ports that a queue pair cycles through, per flowlet or per packet",
    )
    flowlet_gap: Duration = Field(
        default=256e-6,
        description="idle time of a queue pair after which its next packet begins a flowlet",
    )
    reordering_threshold: Integer = Field(
        default=1,
        ge=1,
        le=2**15,
        description="selective-repeat takes a packet for lost when one sent so many packets later "
        "has arrived; 1: at once, as on paths that keep the order",
    )
    reordering_timeout: Duration = Field(
        default=100e-6,
        gt=0,
        description="selective-repeat waits no longer than this for what is below the threshold",
    )

    @model_validator(mode="after")
    def _recovery_of_transport(self) -> Self:
        if self.recovery is None:
            default = "go-back-n" if self.transport == "rc" else "none"
            object.__setattr__(self, "recovery", default)
            return self
        names = registries.recovery_names(self.transport)
        if self.recovery not in names:
            raise PydanticCustomError(
                "unknown_recovery",
                "{name} is not known for transport {transport}; {hint}",
                {
                    "field": "recovery",
                    "name": repr(self.recovery),
                    "transport": self.transport,
                    "hint": suggestion(self.recovery, names),
                },
            )
        return self


class DropFault(Section):
    """One entry of `faults.drop`: a data packet that the first switch discards."""

    connection: Integer = Field(ge=0, description="index in the plan's list of connections")
    psn_offset: Integer = Field(ge=0, description="packets after the connection's first PSN")
    times: Integer = Field(
        default=1, ge=1, le=1000, description="how many of its transmissions are lost"
    )


class _Outage(Section):
    """From when to when something is down."""

    down: Duration = Field(description="emulated time at which it goes down")
    up: Duration | None = Field(default=None, description="when it comes back; null: never")

    @model_validator(mode="after")
    def _down_before_up(self) -> Self:
        if self.up is not None and not self.down < self.up:
            raise PydanticCustomError(
                "down_after_up",
                "{up} is not after down ({down}); allowed: any later time, or null for never",
                {"field": "up", "up": f"{self.up:g} s", "down": f"{self.down:g} s"},
            )
        return self


class LinkFault(_Outage):
    """One entry of `faults.links`: a cut cable. Names one of the link's two interfaces."""

    link: str = Field(description="such as leaf1-spine1, or rank0-leaf1 for a NIC's")


class SwitchFault(_Outage):
    """One entry of `faults.switches`: a switch without power; all of its links are down."""

    switch: str


class FlapFault(Section):
    """One entry of `faults.flaps`: a link that is down for the first half of every period."""

    link: str
    at: Duration
    period: Duration = Field(gt=0)
    count: Integer = Field(default=1, ge=1, le=1000, description="how often it goes down")


class SlowFault(Section):
    """One entry of `faults.slow`: a link that transmits slower, both ways, than it was built to."""

    link: str
    rate: BitRate
    at: Duration = 0.0


class ControllerFault(Section):
    """One entry of `faults.controller`: the controller is killed and started again."""

    restart: Duration = Field(description="emulated time")


class Faults(Section):
    """`faults`: what the experiment breaks, apart from what full queues lose by themselves."""

    drop: tuple[DropFault, ...] = ()
    loss: Real = Field(
        default=0.0,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="probability per data packet, from seed",
    )
    links: tuple[LinkFault, ...] = ()
    switches: tuple[SwitchFault, ...] = ()
    flaps: tuple[FlapFault, ...] = ()
    slow: tuple[SlowFault, ...] = ()
    controller: tuple[ControllerFault, ...] = ()
    detection: Duration = Field(
        default=10e-6,
        description="until both ends of a link know, and a switch uses its other ports",
    )
    convergence: Duration = Field(
        default=100e-6, description="until every switch has the entries that fit the new links"
    )

    @model_validator(mode="after")
    def _local_before_global(self) -> Self:
        if self.convergence < self.detection:
            raise PydanticCustomError(
                "convergence_before_detection",
                "{convergence} is shorter than detection ({detection}); allowed: that or longer",
                {
                    "field": "convergence",
                    "convergence": f"{self.convergence:g} s",
                    "detection": f"{self.detection:g} s",
                },
            )
        return self


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
