"""Adaptive routing: each leaf sends to the uplink with the shortest queue.

As switches for AI fabrics do per packet or per flowlet (NVIDIA Spectrum-X's RoCE adaptive routing,
Broadcom's dynamic load balancing). Only local queues are looked at.
"""

from __future__ import annotations

from pydantic import Field

from controllers.labels import LabelMode
from controllers.schemes.base import register_scheme
from controllers.schemes.labelled import LabelledScheme, LabelParameters
from testbed.units import Duration


class AdaptiveParameters(LabelParameters):
    """How often a flow may change its uplink."""

    gap: Duration = Field(
        0.0, ge=0, description="idle time after which a flow may change; 0 for every packet"
    )


@register_scheme
class Adaptive(LabelledScheme):
    """The least loaded uplink, per packet or per flowlet."""

    name = "adaptive"
    parameters_type = AdaptiveParameters
    mode = LabelMode.ADAPTIVE

    @property
    def flowlet_gap(self) -> float:
        """The ``gap`` parameter."""
        return float(self.parameters.gap)

    @property
    def load_aware(self) -> bool:
        """Always."""
        return True
