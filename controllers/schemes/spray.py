"""Packet spraying: each leaf deals its packets out over the uplinks one by one.

Balances perfectly and reorders freely (A. Dixit et al., "On the Impact of Packet Spraying in Data
Center Networks", INFOCOM 2013), so it needs receivers that accept packets in any order.
"""

from __future__ import annotations

from controllers.labels import LabelMode
from controllers.schemes.base import register_scheme
from controllers.schemes.labelled import LabelledScheme


@register_scheme
class Spray(LabelledScheme):
    """Round robin over uplinks per leaf, whatever flow a packet belongs to."""

    name = "spray"
    mode = LabelMode.SPRAY
