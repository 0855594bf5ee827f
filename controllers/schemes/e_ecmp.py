"""E-ECMP: ECMP whose leaves hash the BTH's destination QP besides the 5-tuple.

Meta's answer to flows that differ in nothing that a switch hashes by default: the leaves match the
destination QP by a user-defined field, and connections use several QPs (A. Gangidi et al., "RDMA
over Ethernet for Distributed AI Training at Meta Scale", SIGCOMM 2024, section 5.2).
"""

from __future__ import annotations

from controllers.labels import LabelMode
from controllers.schemes.base import register_scheme
from controllers.schemes.labelled import LabelledScheme


@register_scheme
class EnhancedEcmp(LabelledScheme):
    """A flow, and thus a QP, keeps its path; links are chosen by hash at every tier."""

    name = "e-ecmp"
    mode = LabelMode.HASH
