"""What holds for every recovery: any finite loss, reordering and duplication is survived."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qp_link import DELAY, RECOVERIES, Link, drop_data, pair, payload, write

from traffic.codec import Packet
from traffic.recovery import Recovery, create_recovery, recovery_names, register_recovery
from traffic.recovery.go_back_n import GoBackNRequester, GoBackNResponder
from traffic.verbs import QpType, RecvWr, SendWr, WcStatus, WrOpcode

fates = st.dictionaries(
    st.integers(0, 120),
    st.sampled_from([[], [], [2 * DELAY], [30 * DELAY], [0.0, 0.0], [0.0, 9 * DELAY]]),
    max_size=40,
)


@pytest.mark.parametrize("recovery", RECOVERIES)
@settings(max_examples=120)
@given(
    fates=fates,
    packets=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    psn=st.sampled_from([0, (1 << 24) - 7, 1 << 23]),
    window=st.sampled_from([None, 1, 4, 16]),
    interval=st.sampled_from([1, 3, 64]),
    late=st.lists(st.integers(0, 60), max_size=3),
)
def test_any_finite_disturbance_is_survived(recovery, fates, packets, psn, window, interval, late):
    """Memory, completions and their order are those of a faithful network, and the books close.

    Receive requests are posted before anything is sent, or for ``late`` after that many frames.
    """
    a, b = pair(
        recovery,
        psn=psn,
        send_window=window,
        ack_interval=interval,
        timeout=10,
        min_rnr_timer=1,
    )
    receives = []
    messages = []
    for wr_id, count in enumerate(packets):
        content = payload(max(count * 256 - 100, 0), wr_id)
        target = b.region(len(content))
        messages.append((content, target))
        source = a.region(content)
        if wr_id % 3 == 0:
            write(a, source, target, wr_id=wr_id)
        elif wr_id % 3 == 1:
            receives.append(RecvWr(wr_id=wr_id))
            opcode = WrOpcode.RDMA_WRITE_WITH_IMM
            write(a, source, target, wr_id=wr_id, opcode=opcode, imm_data=wr_id)
        else:
            receives.append(RecvWr(wr_id=wr_id, sge=target.sge()))
            a.qp.post_send(SendWr(wr_id=wr_id, opcode=WrOpcode.SEND, sge=source.sge()))

    while len(receives) > len(late):
        b.qp.post_recv(receives.pop(0))

    def fate(number: int, _: Packet) -> list[float]:
        while receives and number >= sorted(late)[-len(receives)]:
            b.qp.post_recv(receives.pop(0))
        return fates.get(number, [0.0])

    Link(a, b, fate).run()

    for content, target in messages:
        assert bytes(target.view) == content
    done = a.send_cq.poll()
    assert [(c.wr_id, c.status) for c in done] == [
        (wr_id, WcStatus.SUCCESS) for wr_id in range(len(packets))
    ]
    received = b.recv_cq.poll()
    assert [c.wr_id for c in received] == [i for i in range(len(packets)) if i % 3]
    sender, receiver = a.qp.counters, b.qp.counters
    distinct = sum(max(-(-len(content) // 256), 1) for content, _ in messages)
    assert sender.sent_packets - sender.retransmitted_packets == distinct
    assert receiver.delivered_packets == distinct
    assert receiver.delivered_bytes == sum(len(content) for content, _ in messages)
    assert receiver.received_packets == (
        receiver.delivered_packets + receiver.duplicate_packets + receiver.discarded_packets
    )
    assert not a.qp.has_request(0.0)
    assert a.qp.next_timeout() is None


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_lost_last_packet_of_a_short_message_costs_both_the_same(recovery):
    a, b = pair(recovery)
    write(a, a.region(payload(3 * 256)), b.region(3 * 256))
    end = Link(a, b, drop_data(2)).run()
    assert a.qp.counters.timeouts == 1
    assert end == pytest.approx(4.096e-6 * 2**14 + 2 * DELAY, abs=3 * DELAY)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_heavy_random_loss(recovery):
    """5 % of all frames, ACKs included, from a fixed pattern."""
    a, b = pair(recovery, timeout=8)
    target = b.region(2000 * 256)
    write(a, a.region(payload(2000 * 256)), target)
    Link(a, b, lambda number, _: [] if number * 2654435761 % 100 < 5 else [0.0]).run()
    assert bytes(target.view) == payload(2000 * 256)
    assert a.statuses() == [WcStatus.SUCCESS]


def test_names():
    assert recovery_names() == ["go-back-n", "none", "selective-repeat"]
    assert recovery_names(QpType.RC) == ["go-back-n", "selective-repeat"]
    assert recovery_names(QpType.UC) == ["none"]


@pytest.mark.parametrize(
    ("name", "qp_type"), [("go-back-m", QpType.RC), ("none", QpType.RC), ("go-back-n", QpType.UC)]
)
def test_unknown_recovery_names_the_known_ones(name, qp_type):
    with pytest.raises(ValueError, match=f"{name}.*known: {', '.join(recovery_names(qp_type))}"):
        create_recovery(name, qp_type=qp_type)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="twice"):
        register_recovery(
            Recovery("go-back-n", frozenset({QpType.RC}), GoBackNRequester, GoBackNResponder)
        )
