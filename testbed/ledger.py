"""The packet ledger: every packet that a NIC sent has an end that can be named.

Sent = delivered to a NIC + dropped at a named place for a named reason + still in flight, for data
packets (requests) and for control packets (ACK, NAK, CNP) apart. Further sums say *where* packets
went missing when that one does not close:

- each port: enqueued = dequeued + queue depth, in packets and bytes;
- each switch: what arrived over its links = what was offered to its ports (enqueued + dropped);
- each NIC: queue pairs' packets = the NIC's = its transmit queue's; arrived = received.

Pure: counters in, ledger out. All bytes are frame bytes from the Ethernet header to the ICRC. Only
ports are balanced in bytes: between ports the fabric's label tag adds to a frame and goes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

_END_TO_END = "sent = delivered + dropped + in flight"


class TrafficClass(StrEnum):
    """What a packet is to the transport."""

    DATA = "data"
    """Request packets: SEND, RDMA WRITE, READ request, and READ responses, which carry data."""

    CONTROL = "control"
    """ACK, NAK and CNP."""

    OTHER = "other"
    """Anything whose class is not known, such as a frame lost before it was parsed."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of packets and the bytes in them."""

    packets: int = 0
    bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.packets + other.packets, self.bytes + other.bytes)

    def __sub__(self, other: Count) -> Count:
        return Count(self.packets - other.packets, self.bytes - other.bytes)


Fate = Literal["delivered", "dropped", "in flight"]

ClassCounts = Mapping[TrafficClass, Count]
"""Counts by traffic class; an absent class counts as zero."""

ReasonCounts = Mapping[str, ClassCounts]
"""Counts by reason ("port-limit", "icrc-error"...) and traffic class."""


@dataclass(frozen=True)
class PortCounters:
    """What one port's queue saw; ``peer`` is the interface at the other end of its link.

    ``enqueued`` leaves out what the port dropped on arrival. ``dequeued`` is what left the queue.
    ``depth`` must be known from elsewhere (the qdisc's backlog), not as the difference of the two:
    then a frame that the kernel lost between them stays unexplained, as it should.
    """

    interface: str
    node: str
    peer: str
    peer_node: str
    enqueued: Count
    dequeued: Count
    depth: ClassCounts = field(default_factory=dict)
    dropped: ReasonCounts = field(default_factory=dict)


@dataclass(frozen=True)
class NicCounters:
    """What one NIC interface saw.

    ``sent`` counts packets that queue pairs gave to the interface, ``send_dropped`` those of them
    that never reached the wire (injected loss). ``delivered`` counts packets handed to a queue
    pair, ``receive_dropped`` packets from the wire that were not (ICRC error, unknown QP), and
    ``held`` packets in the delay line. ``queue_pair_sent`` is the queue pairs' own sum of packets
    of every class, where it is kept.
    """

    interface: str
    peer_node: str
    sent: ClassCounts
    delivered: ClassCounts
    send_dropped: ReasonCounts = field(default_factory=dict)
    receive_dropped: ReasonCounts = field(default_factory=dict)
    held: ClassCounts = field(default_factory=dict)
    queue_pair_sent: int | None = None


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class LedgerRow(_Frozen):
    """The end of some packets: where, what, why."""

    traffic_class: TrafficClass
    fate: Fate
    place: str
    reason: str = ""
    packets: int
    bytes: int


class LedgerAccount(_Frozen):
    """The sum for one traffic class, in packets. ``open`` is sent minus everything explained."""

    traffic_class: TrafficClass
    sent: int
    delivered: int
    dropped: int
    in_flight: int
    open: int


class LedgerCheck(_Frozen):
    """One sum that should close. ``difference`` = left - right."""

    name: str
    place: str
    unit: Literal["packets", "bytes"]
    left: int
    right: int

    @property
    def difference(self) -> int:
        """What is unexplained: positive when something vanished, negative when it appeared."""
        return self.left - self.right


class Ledger(_Frozen):
    """The whole ledger of one run.

    ``open`` counts unexplained packets, 0 when every sum closes; it is the largest of the
    end-to-end sums and the local ones, and at least 1 if any sum, in bytes too, stays open.
    """

    accounts: list[LedgerAccount]
    rows: list[LedgerRow]
    failed: list[LedgerCheck]
    checks: int
    open: int
    summary: str

    @property
    def closed(self) -> bool:
        """Whether every sum closes."""
        return self.open == 0


def build_ledger(nics: Iterable[NicCounters], ports: Iterable[PortCounters]) -> Ledger:
    """Account for every packet. ``nics`` are all NIC interfaces, ``ports`` all switch ports.

    ``ports`` may include the NICs' own transmit queues, under the NIC interface's name.
    """
    nics, ports = list(nics), list(ports)
    rows = _rows(nics, ports)
    accounts = _attribute_unclassified([_account(c, nics, rows) for c in TrafficClass])
    checks = [
        *_end_to_end(accounts),
        *_port_checks(ports),
        *_switch_checks(nics, ports),
        *_nic_checks(nics, ports),
    ]
    failed = [check for check in checks if check.difference != 0]
    end_to_end = sum(abs(account.open) for account in accounts)
    local = max((abs(c.difference) for c in failed if c.unit == "packets"), default=0)
    unexplained = max(end_to_end, local, 1 if failed else 0)
    return Ledger(
        accounts=accounts,
        rows=rows,
        failed=failed,
        checks=len(checks),
        open=unexplained,
        summary=_summary(accounts, failed, len(checks)),
    )


def total(counts: ClassCounts) -> Count:
    """Sum over all traffic classes."""
    return sum(counts.values(), Count())


def total_of_reasons(counts: ReasonCounts) -> Count:
    """Sum over all reasons and traffic classes."""
    return sum((total(by_class) for by_class in counts.values()), Count())


def _rows(nics: list[NicCounters], ports: list[PortCounters]) -> list[LedgerRow]:
    rows: list[LedgerRow] = []

    def add(fate: Fate, place: str, reason: str, counts: ClassCounts) -> None:
        for traffic_class, count in counts.items():
            if count.packets:
                rows.append(
                    LedgerRow(
                        traffic_class=traffic_class,
                        fate=fate,
                        place=place,
                        reason=reason,
                        packets=count.packets,
                        bytes=count.bytes,
                    )
                )

    for nic in nics:
        add("delivered", nic.interface, "", nic.delivered)
    for port in ports:
        for reason, counts in port.dropped.items():
            add("dropped", port.interface, reason, counts)
    for nic in nics:
        for reason, counts in (*nic.send_dropped.items(), *nic.receive_dropped.items()):
            add("dropped", nic.interface, reason, counts)
    for port in ports:
        add("in flight", port.interface, "queued", port.depth)
    for nic in nics:
        add("in flight", nic.interface, "delay line", nic.held)
    return rows


def _account(
    traffic_class: TrafficClass, nics: list[NicCounters], rows: list[LedgerRow]
) -> LedgerAccount:
    sent = sum(nic.sent.get(traffic_class, Count()).packets for nic in nics)
    by_fate = {"delivered": 0, "dropped": 0, "in flight": 0}
    for row in rows:
        if row.traffic_class is traffic_class:
            by_fate[row.fate] += row.packets
    return LedgerAccount(
        traffic_class=traffic_class,
        sent=sent,
        delivered=by_fate["delivered"],
        dropped=by_fate["dropped"],
        in_flight=by_fate["in flight"],
        open=sent - sum(by_fate.values()),
    )


def _attribute_unclassified(accounts: list[LedgerAccount]) -> list[LedgerAccount]:
    """Let losses of unknown class explain what the known classes miss; omit empty accounts.

    A frame dropped for its ICRC was sent as data or control; which can no longer be read.
    """
    *known, other = accounts
    unclassified = other.dropped if other.sent == 0 else 0
    attributed = []
    for account in known:
        share = max(0, min(account.open, unclassified))
        unclassified -= share
        other = _with_dropped(other, -share)
        attributed.append(_with_dropped(account, share))
    return [
        account
        for account in (*attributed, other)
        if account.sent or account.delivered or account.dropped or account.in_flight
    ]


def _with_dropped(account: LedgerAccount, more: int) -> LedgerAccount:
    return account.model_copy(
        update={"dropped": account.dropped + more, "open": account.open - more}
    )


def _end_to_end(accounts: list[LedgerAccount]) -> list[LedgerCheck]:
    return [
        LedgerCheck(
            name=_END_TO_END,
            place=f"{account.traffic_class} packets",
            unit="packets",
            left=account.sent,
            right=account.sent - account.open,
        )
        for account in accounts
    ]


def _port_checks(ports: list[PortCounters]) -> list[LedgerCheck]:
    checks = []
    for port in ports:
        left, right = port.enqueued, port.dequeued + total(port.depth)
        name = "enqueued = dequeued + depth"
        checks.append(_check(name, port.interface, "packets", left.packets, right.packets))
        checks.append(_check(name, port.interface, "bytes", left.bytes, right.bytes))
    return checks


def _switch_checks(nics: list[NicCounters], ports: list[PortCounters]) -> list[LedgerCheck]:
    """What arrived over a switch's links was offered to its ports."""
    queued_nics = {port.interface for port in ports}
    arrived: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    nic_names = {nic.interface for nic in nics}
    for port in ports:
        arrived[port.peer_node] += port.dequeued.packets
        if port.interface not in nic_names:
            offered[port.node] += _offered(port).packets
    for nic in nics:
        if nic.interface not in queued_nics:
            arrived[nic.peer_node] += _on_wire(nic).packets
    return [
        _check("arrived = offered to ports", node, "packets", arrived[node], offered[node])
        for node in sorted(offered)
    ]


def _nic_checks(nics: list[NicCounters], ports: list[PortCounters]) -> list[LedgerCheck]:
    """Queue pairs' packets = the NIC's = its queue's; what its link brought, it received."""
    own_port = {port.interface: port for port in ports}
    last_port = {port.peer: port for port in ports}
    checks = []
    for nic in nics:
        sums = []
        if nic.queue_pair_sent is not None:
            sent = total(nic.sent).packets
            sums.append(("sent by queue pairs = sent by NIC", nic.queue_pair_sent, sent))
        if (own := own_port.get(nic.interface)) is not None:
            offered = _offered(own).packets
            sums.append(("sent by NIC = offered to its queue", _on_wire(nic).packets, offered))
        if (last := last_port.get(nic.interface)) is not None:
            received = total(nic.delivered) + total_of_reasons(nic.receive_dropped)
            received += total(nic.held)
            sums.append(("arrived = received by NIC", last.dequeued.packets, received.packets))
        checks += [_check(name, nic.interface, "packets", a, b) for name, a, b in sums]
    return checks


def _offered(port: PortCounters) -> Count:
    return port.enqueued + total_of_reasons(port.dropped)


def _on_wire(nic: NicCounters) -> Count:
    return total(nic.sent) - total_of_reasons(nic.send_dropped)


def _check(
    name: str, place: str, unit: Literal["packets", "bytes"], left: int, right: int
) -> LedgerCheck:
    return LedgerCheck(name=name, place=place, unit=unit, left=left, right=right)


def _summary(accounts: list[LedgerAccount], failed: list[LedgerCheck], checks: int) -> str:
    """One line: the sums if they close, else the first failure, its size and how many more."""
    if not accounts:
        return "ledger empty: no packet was sent"
    if not failed:
        parts = [
            f"{a.sent} {a.traffic_class} packets = {a.delivered} delivered + {a.dropped} dropped "
            f"+ {a.in_flight} in flight"
            for a in accounts
        ]
        return f"ledger closed ({checks} sums): " + "; ".join(parts)
    # A local sum names the place, so it says more than the end-to-end sum it explains.
    worst = max(failed, key=lambda c: (not c.name.startswith(_END_TO_END), abs(c.difference)))
    amount = abs(worst.difference)
    unit = worst.unit.removesuffix("s") if amount == 1 else worst.unit
    verb = "missing" if worst.difference > 0 else "too many"
    others = len(failed) - 1
    more = f" (and {others} other sum{'s' if others > 1 else ''})" if others else ""
    return (
        f"ledger open: {worst.name} fails at {worst.place}: {worst.left} against {worst.right}, "
        f"{amount} {unit} {verb}{more}"
    )
