"""Section `nic`: attributes of queue pairs, and how messages are spread over them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from testbed import registries
from testbed.registries import suggestion
from testbed.schema.section import Section
from testbed.schema.values import Integer
from testbed.units import Duration


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
