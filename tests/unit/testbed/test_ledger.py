"""The ledger closes when packets are conserved, and names the place when they are not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.ledger import Count, NicCounters, PortCounters, TrafficClass, build_ledger

DATA, CONTROL = TrafficClass.DATA, TrafficClass.CONTROL


def frames(packets, size=4154):
    return Count(packets, packets * size)


def two_leaves(sent=100, dropped=7, queued=2, held=3, acks=40, injected=4):
    """rank0 -> leaf1 -> spine1 -> leaf2 -> rank1; drops at leaf2's last port; ACKs come back."""
    on_wire = sent - injected
    through = on_wire - dropped
    nics = [
        NicCounters(
            "rank0-leaf1", "leaf1", {DATA: frames(sent)}, {CONTROL: frames(acks, 62)},
            send_dropped={"injected": {DATA: frames(injected)}}, queue_pair_sent=sent,
        ),
        NicCounters(
            "rank1-leaf2", "leaf2", {CONTROL: frames(acks, 62)},
            {DATA: frames(through - queued - held)}, held={DATA: frames(held)},
            queue_pair_sent=acks,
        ),
    ]  # fmt: skip
    forward = frames(on_wire)
    back = frames(acks, 62)
    ports = [
        PortCounters("leaf1-spine1", "leaf1", "spine1-leaf1", "spine1", forward, forward),
        PortCounters("spine1-leaf2", "spine1", "leaf2-spine1", "leaf2", forward, forward),
        PortCounters(
            "leaf2-rank1", "leaf2", "rank1-leaf2", "server2", frames(through),
            frames(through - queued), depth={DATA: frames(queued)},
            dropped={"port limit": {DATA: frames(dropped)}},
        ),
        PortCounters("leaf2-spine1", "leaf2", "spine1-leaf2", "spine1", back, back),
        PortCounters("spine1-leaf1", "spine1", "leaf1-spine1", "leaf1", back, back),
        PortCounters("leaf1-rank0", "leaf1", "rank0-leaf1", "server1", back, back),
    ]  # fmt: skip
    return nics, ports


def with_nic_queues(nics, ports):
    """The same fabric where the NICs' own transmit queues are counted as well."""
    queues = []
    for nic in nics:
        wire = sum((c for c in nic.sent.values()), Count())
        for by_class in nic.send_dropped.values():
            for count in by_class.values():
                wire -= count
        peer = "-".join(reversed(nic.interface.split("-")))
        queues.append(PortCounters(nic.interface, "server", peer, nic.peer_node, wire, wire))
    return nics, [*ports, *queues]


def test_closed_ledger_accounts_for_every_packet():
    ledger = build_ledger(*two_leaves())
    assert ledger.closed and ledger.open == 0 and ledger.failed == []
    data, control = ledger.accounts
    assert (data.sent, data.delivered, data.dropped, data.in_flight) == (100, 84, 11, 5)
    assert (control.sent, control.delivered, control.dropped) == (40, 40, 0)
    assert "100 data packets = 84 delivered + 11 dropped + 5 in flight" in ledger.summary


def test_rows_name_place_reason_and_bytes():
    ledger = build_ledger(*two_leaves())
    dropped = {
        (r.place, r.reason): (r.packets, r.bytes) for r in ledger.rows if r.fate == "dropped"
    }
    assert dropped == {
        ("leaf2-rank1", "port limit"): (7, 7 * 4154),
        ("rank0-leaf1", "injected"): (4, 4 * 4154),
    }
    in_flight = {(r.place, r.reason): r.packets for r in ledger.rows if r.fate == "in flight"}
    assert in_flight == {("leaf2-rank1", "queued"): 2, ("rank1-leaf2", "delay line"): 3}


@given(
    sent=st.integers(20, 10**6),
    dropped=st.integers(0, 5),
    queued=st.integers(0, 5),
    held=st.integers(0, 5),
    acks=st.integers(0, 10**6),
    injected=st.integers(0, 5),
    nic_queues=st.booleans(),
)
def test_conserved_packets_always_close(sent, dropped, queued, held, acks, injected, nic_queues):
    fabric = two_leaves(sent, dropped, queued, held, acks, injected)
    if nic_queues:
        fabric = with_nic_queues(*fabric)
    assert build_ledger(*fabric).closed


@pytest.mark.parametrize("nic_queues", [False, True])
@pytest.mark.parametrize(
    ("interface", "place"),
    [("spine1-leaf2", "leaf2"), ("leaf1-spine1", "spine1"), ("leaf2-rank1", "rank1-leaf2")],
)
def test_packets_lost_behind_a_queue_are_missed_at_that_port(interface, place, nic_queues):
    """As when the kernel drops what a queue holds: enqueued, never dequeued, not in the backlog."""
    nics, ports = two_leaves()
    if nic_queues:
        nics, ports = with_nic_queues(nics, ports)
    ports = [
        replace(p, dequeued=p.dequeued - frames(5)) if p.interface == interface else p
        for p in ports
    ]
    ledger = build_ledger(nics, ports)
    assert ledger.open == 5 and not ledger.closed
    failed = {(check.place, check.unit): check.difference for check in ledger.failed}
    assert failed[(interface, "packets")] == 5
    assert failed[(place, "packets")] == -5  # the next place got more than the counter says


def test_packets_lost_inside_a_switch_are_missed_at_that_switch():
    nics, ports = two_leaves()
    lost = frames(3)
    for i, port in enumerate(ports):
        if port.interface in ("spine1-leaf2",):
            ports[i] = replace(port, enqueued=port.enqueued - lost, dequeued=port.dequeued - lost)
        if port.interface == "leaf2-rank1":
            ports[i] = replace(port, enqueued=port.enqueued - lost, dequeued=port.dequeued - lost)
    nics[1] = replace(nics[1], delivered={DATA: nics[1].delivered[DATA] - lost})
    ledger = build_ledger(nics, ports)
    assert ledger.open == 3
    assert [(c.place, c.difference) for c in ledger.failed] == [("data packets", 3), ("spine1", 3)]
    assert ledger.summary == (
        "ledger open: arrived = offered to ports fails at spine1: 136 against 133, "
        "3 packets missing (and 1 other sum)"
    )


def test_a_duplicated_packet_is_too_many():
    nics, ports = two_leaves()
    nics[1] = replace(nics[1], delivered={DATA: nics[1].delivered[DATA] + frames(1)})
    ledger = build_ledger(nics, ports)
    assert ledger.open == 1
    assert "rank1-leaf2" in ledger.summary and "1 packet too many" in ledger.summary


def test_errors_that_cancel_out_in_the_sum_stay_open():
    """One data packet less and one control packet more is not a closed ledger."""
    nics, ports = two_leaves()
    nics[1] = replace(
        nics[1],
        delivered={DATA: nics[1].delivered[DATA] - frames(1), CONTROL: frames(1, 62)},
    )
    assert build_ledger(nics, ports).open == 2


def test_a_loss_of_unknown_class_explains_a_known_packet_once():
    """A frame with a wrong ICRC was one of the data packets; a second one nobody sent."""
    nics, ports = two_leaves()
    received = {DATA: nics[1].delivered[DATA] - frames(1)}
    corrupt = {"ICRC error": {TrafficClass.OTHER: frames(1)}}
    nics[1] = replace(nics[1], delivered=received, receive_dropped=corrupt)
    ledger = build_ledger(nics, ports)
    assert ledger.closed and [a.dropped for a in ledger.accounts] == [12, 0]
    nics[1] = replace(nics[1], receive_dropped={"ICRC error": {TrafficClass.OTHER: frames(2)}})
    assert build_ledger(nics, ports).open == 1


def test_wrong_bytes_alone_open_the_ledger():
    nics, ports = two_leaves()
    ports[0] = replace(ports[0], dequeued=ports[0].dequeued - Count(0, 4))
    ledger = build_ledger(nics, ports)
    assert not ledger.closed and ledger.open == 1
    assert "leaf1-spine1" in ledger.summary and "4 bytes missing" in ledger.summary


def test_packets_that_a_nic_did_not_send_are_found():
    nics, ports = two_leaves()
    nics[0] = replace(nics[0], queue_pair_sent=101)
    ledger = build_ledger(nics, ports)
    assert [(c.name, c.place) for c in ledger.failed] == [
        ("sent by queue pairs = sent by NIC", "rank0-leaf1")
    ]


def test_no_packets_says_so():
    ledger = build_ledger([], [])
    assert ledger.summary == "ledger empty: no packet was sent"
    assert ledger.accounts == []
