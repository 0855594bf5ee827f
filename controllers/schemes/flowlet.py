"""Flowlet switching: a flow that has paused for long enough may go on over another uplink.

The pause must exceed the difference in delay between paths, then nothing is reordered (S. Sinha,
S. Kandula, D. Katabi, "Harnessing TCP's Burstiness with Flowlet Switching", HotNets 2004). Meta's
leaves use gaps of 256-512 us and choose the uplink by load (SIGCOMM 2024).
"""

from __future__ import annotations

from pydantic import Field

from controllers.labels import LabelMode
from controllers.schemes.base import register_scheme
from controllers.schemes.labelled import LabelledScheme, LabelParameters
from testbed.units import Duration


class FlowletParameters(LabelParameters):
    """When a flowlet ends and how the next one is placed."""

    gap: Duration = Field(256e-6, gt=0, description="idle time after which a new flowlet begins")
    load_aware: bool = Field(
        True, description="a new flowlet takes the least loaded uplink; false: a hashed one"
    )


@register_scheme
class Flowlet(LabelledScheme):
    """A leaf chooses for every flowlet; a flow is a 5-tuple and a destination QP."""

    name = "flowlet"
    parameters_type = FlowletParameters
    mode = LabelMode.FLOWLET

    @property
    def flowlet_gap(self) -> float:
        """The ``gap`` parameter."""
        return float(self.parameters.gap)

    @property
    def load_aware(self) -> bool:
        """The ``load_aware`` parameter."""
        return bool(self.parameters.load_aware)
