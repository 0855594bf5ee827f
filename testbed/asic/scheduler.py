"""The serialiser of a port: an HTB tree at link rate, planned, applied and read back.

The tree only delays; admission happens in front of it (mmu.bpf.c), so its own limits are never
reached. Rates here are wall rates: emulated rates divided by the dilation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from traffic.codec import FRAME_OVERHEAD

_ROOT = 0x1_0000
_CLASS = 0x1_0010
_LEAF = 0x10_0000
_LEAF_PACKETS = 1_000_000
_EGRESS = 0xFFFF_FFF3
_INGRESS = 0xFFFF_FFF2
_TICKS_PER_US = 15.625
"""tc's clock: PSCHED_SHIFT 6, so one tick is 64 ns (include/net/pkt_sched.h)."""
_TIMER_LATENESS = 0.0002
"""Wall seconds by which the timer of a busy machine may be late."""
_BURST_SHARE = 4


@dataclass(frozen=True, slots=True)
class PortPlan:
    """What one interface's scheduler must be: ``rate`` in wall bit/s, ``frame`` in bytes."""

    ifindex: int
    name: str
    rate: float
    frame: int

    @property
    def bytes_per_second(self) -> int:
        """The rate as HTB takes it, rounded to the nearest byte per second."""
        return max(1, round(self.rate / 8))

    @property
    def quantum(self) -> int:
        """One frame of the largest size with its overhead."""
        return self.frame + FRAME_OVERHEAD

    @property
    def burst(self) -> int:
        """HTB's bucket in bytes: how late the kernel's timer may be before the rate suffers.

        An idle port's bucket is full, so by as much all but the first frame after a pause are
        early: a quarter of a frame, more only where that would be less time than the timer needs.
        """
        least = min(self.quantum, math.ceil(_TIMER_LATENESS * self.rate / 8))
        return max(self.quantum // _BURST_SHARE, least)


def apply_plan(ip: IPRoute, plan: PortPlan) -> None:
    """Build the port's tree on an interface of ``ip``'s namespace."""
    ip.tc("add", "clsact", plan.ifindex)
    _build_tree(ip, plan)


def rebuild_tree(ip: IPRoute, plan: PortPlan) -> None:
    """Throw away all frames that wait in a port's tree."""
    ip.tc("del", "htb", plan.ifindex, "1:")
    _build_tree(ip, plan)


def change_rate(ip: IPRoute, plan: PortPlan) -> None:
    """Serve what waits in a port's tree, and what comes, at the plan's rate from now on.

    The class keeps its tokens: the frame that is being sent now still ends when it would have. Not
    for rates of a few bit/s, at which one frame runs up a debt of minutes (sch_htb.c: mbuffer).
    """
    _set_class(ip, "change-class", plan)


def _build_tree(ip: IPRoute, plan: PortPlan) -> None:
    ip.tc("add", "htb", plan.ifindex, "1:", default=_CLASS & 0xFFFF)
    _set_class(ip, "add-class", plan)
    ip.tc("add", "pfifo", plan.ifindex, "10:", parent="1:10", limit=_LEAF_PACKETS)


def _set_class(ip: IPRoute, command: str, plan: PortPlan) -> None:
    ip.tc(
        command, "htb", plan.ifindex, "1:10", parent="1:",
        rate=plan.bytes_per_second, ceil=plan.bytes_per_second,
        burst=plan.burst, cburst=plan.burst, quantum=plan.quantum, overhead=FRAME_OVERHEAD,
    )  # fmt: skip


def attach_programs(ip: IPRoute, ifindex: int, *, egress: int, ingress: int) -> None:
    """Attach the buffer programs (by descriptor) to the interface's clsact hooks."""
    for parent, descriptor, name in ((_EGRESS, egress, "enqueue"), (_INGRESS, ingress, "dequeue")):
        ip.tc(
            "add-filter", "bpf", ifindex,
            fd=descriptor, name=name, parent=parent, direct_action=True, prio=1,
        )  # fmt: skip


def read_back(ip: IPRoute, plans: Iterable[PortPlan]) -> list[str]:
    """Compare what the kernel has in one namespace with the plans; one line per difference."""
    # the kernel dumps the qdiscs of all interfaces, whichever is asked for: ask only once
    qdiscs: dict[int, dict[int, str]] = {}
    for message in ip.get_qdiscs():
        qdiscs.setdefault(message["index"], {})[message["handle"]] = message.get_attr("TCA_KIND")
    problems: list[str] = []
    for plan in plans:
        found = qdiscs.get(plan.ifindex, {})
        if found != {_ROOT: "htb", _LEAF: "pfifo", 0xFFFF_0000: "clsact"}:
            kinds = ", ".join(sorted(map(str, found.values()))) or "none"
            problems.append(f"{plan.name}: qdiscs are {kinds}; planned clsact, htb, pfifo")
            continue
        problems += _compare_classes(ip, plan)
        problems += _compare_programs(ip, plan)
    return problems


def _compare_programs(ip: IPRoute, plan: PortPlan) -> list[str]:
    problems = []
    for parent, wanted in ((_EGRESS, "enqueue"), (_INGRESS, "dequeue")):
        names = [
            options.get_attr("TCA_BPF_NAME")
            for message in ip.get_filters(index=plan.ifindex, parent=parent)
            if (options := message.get_attr("TCA_OPTIONS")) is not None
            and options.get_attr("TCA_BPF_NAME")
        ]
        if names != [wanted]:
            problems.append(f"{plan.name}: clsact runs {names}; planned ['{wanted}']")
    return problems


def _compare_classes(ip: IPRoute, plan: PortPlan) -> list[str]:
    for message in ip.get_classes(index=plan.ifindex):
        if message["handle"] == _CLASS:
            return _compare_class(plan, message)
    return [f"{plan.name}: htb has no class 1:10"]


def _compare_class(plan: PortPlan, message: Any) -> list[str]:
    options = message.get_attr("TCA_OPTIONS")
    parameters = options.get_attr("TCA_HTB_PARMS")
    rate = options.get_attr("TCA_HTB_RATE64") or parameters["rate"]
    # burst is stored as the time it takes at this rate
    burst = parameters["buffer"] / _TICKS_PER_US * 1e-6 * rate
    problems = []
    if rate != plan.bytes_per_second:
        problems.append(f"{plan.name}: rate {rate} B/s; planned {plan.bytes_per_second} B/s")
    if parameters["rate_overhead"] != FRAME_OVERHEAD:
        problems.append(
            f"{plan.name}: overhead {parameters['rate_overhead']} B; planned {FRAME_OVERHEAD} B"
        )
    if not math.isclose(burst, plan.burst, rel_tol=0.02):
        problems.append(f"{plan.name}: burst {burst:.0f} B; planned {plan.burst} B")
    return problems
