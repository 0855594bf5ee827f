"""States, transitions, attributes, limits, memory and the trace hook."""

from __future__ import annotations

import mmap

import pytest
from qp_link import Link, connect, drop_data, endpoint, pair, path, payload, write

from traffic.memory import AccessFlags, ProtectionDomain, Sge
from traffic.qp import PathAttributes, QueuePair
from traffic.verbs import (
    CompletionQueue,
    QpState,
    QpType,
    QueueFullError,
    RecvWr,
    SendWr,
    VerbsError,
    WcStatus,
    WrOpcode,
)

RTR = {"path": path(1, 2), "path_mtu": 1024, "dest_qp_num": 2, "rq_psn": 0, "min_rnr_timer": 12}
RTS = {"sq_psn": 0, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7}


def in_state(state: QpState, qp_type: QpType = QpType.RC) -> QueuePair:
    qp = endpoint(1, qp_type).qp
    if state is QpState.ERR:
        qp.modify(QpState.ERR)
    if state in (QpState.INIT, QpState.RTR, QpState.RTS):
        qp.to_init()
    if state in (QpState.RTR, QpState.RTS):
        qp.modify(QpState.RTR, **RTR)
    if state is QpState.RTS:
        qp.modify(QpState.RTS, **RTS)
    return qp


def test_the_way_up():
    qp = in_state(QpState.RTS)
    assert qp.state is QpState.RTS
    assert (qp.attributes.timeout, qp.attributes.path_mtu) == (14, 1024)


@pytest.mark.parametrize("old", [QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS])
@pytest.mark.parametrize("new", [QpState.RESET, QpState.ERR])
def test_reset_and_err_from_anywhere(old, new):
    qp = in_state(old)
    qp.modify(new)
    assert qp.state is new
    assert qp.next_packet(0.0) is None
    assert qp.next_timeout() is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (QpState.RESET, QpState.RTR),
        (QpState.RESET, QpState.RTS),
        (QpState.INIT, QpState.RTS),
        (QpState.RTS, QpState.RTR),
        (QpState.RTS, QpState.SQE),
        (QpState.ERR, QpState.RTS),
        (QpState.ERR, QpState.INIT),
    ],
)
def test_no_such_transition(old, new):
    qp = in_state(old)
    with pytest.raises(VerbsError, match=f"{old.name} -> {new.name}"):
        qp.modify(new)
    assert qp.state is old


@pytest.mark.parametrize("missing", list(RTR))
def test_rtr_needs_its_attributes(missing):
    qp = in_state(QpState.INIT)
    with pytest.raises(VerbsError, match=f"needs {missing}"):
        qp.modify(QpState.RTR, **{key: value for key, value in RTR.items() if key != missing})


def test_attributes_that_do_not_belong():
    with pytest.raises(VerbsError, match="does not take retry_cnt"):
        in_state(QpState.INIT).modify(QpState.RTR, **RTR, retry_cnt=7)
    uc = endpoint(1, QpType.UC).qp
    uc.to_init()
    with pytest.raises(VerbsError, match=r"UC .* does not take min_rnr_timer"):
        uc.modify(QpState.RTR, **RTR)


@pytest.mark.parametrize(
    ("key", "value"),
    [("timeout", 32), ("retry_cnt", 8), ("rnr_retry", -1), ("sq_psn", 1 << 24), ("timeout", 1.5)],
)
def test_attribute_out_of_range(key, value):
    qp = in_state(QpState.RTR)
    with pytest.raises(ValueError, match=f"{key} {value}"):
        qp.modify(QpState.RTS, **RTS | {key: value})
    assert qp.state is QpState.RTR


def test_path_mtu_is_one_of_five():
    with pytest.raises(ValueError, match="path_mtu 1500"):
        in_state(QpState.INIT).modify(QpState.RTR, **RTR | {"path_mtu": 1500})


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_mac": "1"},
        {"dest_ip": "10.0.0"},
        {"udp_source_port": 4791},
        {"tos": 256},
        {"ttl": 0},
    ],
)
def test_path_is_checked(wrong):
    arguments = {
        "source_mac": "02:00:00:00:00:01",
        "dest_mac": "02:00:00:00:00:02",
        "source_ip": "10.0.0.1",
        "dest_ip": "10.0.0.2",
    }
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        PathAttributes(**arguments | wrong)


@pytest.mark.parametrize("wrong", [{"qp_num": 1 << 24}, {"send_window": 0}, {"ack_interval": 0}])
def test_queue_pair_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        endpoint(**{"qp_num": 1} | wrong)


# posting


@pytest.mark.parametrize("state", [QpState.RESET, QpState.INIT, QpState.RTR])
def test_post_send_before_rts(state):
    with pytest.raises(VerbsError, match=state.name):
        in_state(state).post_send(SendWr(wr_id=1, opcode=WrOpcode.SEND))


def test_post_recv_in_reset():
    with pytest.raises(VerbsError, match="RESET"):
        in_state(QpState.RESET).post_recv(RecvWr(wr_id=1))


def test_posts_in_err_are_flushed():
    qp = in_state(QpState.ERR)
    qp.post_send(SendWr(wr_id=1, opcode=WrOpcode.RDMA_WRITE))
    qp.post_recv(RecvWr(wr_id=2))
    assert [(c.wr_id, c.status) for c in qp.send_cq.poll()] == [(1, WcStatus.WR_FLUSH_ERR)]
    assert [(c.wr_id, c.status) for c in qp.recv_cq.poll()] == [(2, WcStatus.WR_FLUSH_ERR)]


@pytest.mark.parametrize(
    ("opcode", "imm_data"),
    [(WrOpcode.SEND, 1), (WrOpcode.SEND_WITH_IMM, None), (WrOpcode.RDMA_WRITE, 0)],
)
def test_immediate_data_and_opcode_must_agree(opcode, imm_data):
    with pytest.raises(VerbsError, match="imm_data"):
        in_state(QpState.RTS).post_send(SendWr(wr_id=1, opcode=opcode, imm_data=imm_data))


def test_queues_have_limits():
    a, b = (endpoint(n, max_send_wr=2, max_recv_wr=2) for n in (1, 2))
    connect(a, b)
    source, target = a.region(b"1234"), b.region(4)
    for _ in range(2):
        write(a, source, target)
        b.qp.post_recv(RecvWr(wr_id=1))
    with pytest.raises(QueueFullError):
        write(a, source, target)
    with pytest.raises(QueueFullError):
        b.qp.post_recv(RecvWr(wr_id=1))
    Link(a, b).run()
    write(a, source, target)


def test_completion_queue_overrun():
    cq = CompletionQueue(cqe=1)
    qp = QueuePair(
        qp_num=1, qp_type=QpType.RC, pd=ProtectionDomain(), send_cq=cq, recv_cq=cq, recovery=None
    )
    qp.modify(QpState.ERR)
    qp.post_recv(RecvWr(wr_id=1))
    with pytest.raises(VerbsError, match="overrun"):
        qp.post_recv(RecvWr(wr_id=2))
    assert len(cq) == 1
    assert [c.wr_id for c in cq.poll(5)] == [1]


def test_reset_starts_from_the_beginning():
    a, b = pair(psn=100)
    write(a, a.region(payload(1000)), b.region(1000))
    a.qp.next_packet(0.0)
    for end in (a, b):
        end.qp.modify(QpState.RESET)
    connect(a, b, psn=5)
    target = b.region(1000)
    write(a, a.region(payload(1000)), target)
    Link(a, b).run()
    assert bytes(target.view) == payload(1000)
    assert a.statuses() == [WcStatus.SUCCESS]


# memory


def test_memory_region_bounds():
    pd = ProtectionDomain()
    region = pd.reg_mr(bytearray(100), AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
    base = region.virtual_address
    right = AccessFlags.REMOTE_WRITE
    for address, length, allowed in [
        (base, 100, True),
        (base + 99, 1, True),
        (base + 100, 0, True),
        (base, 101, False),
        (base - 1, 10, False),
        (base + 100, 1, False),
    ]:
        assert (pd.remote(region.rkey, address, length, right) is not None) == allowed
        assert (pd.local(Sge(address, length, region.lkey)) is not None) == allowed
    assert pd.remote(region.lkey, base, 1, right) is None
    assert pd.local(Sge(base, 1, region.rkey)) is None
    pd.dereg_mr(region)
    assert pd.remote(region.rkey, base, 1, right) is None


def test_memory_may_be_mapped_and_addressed_freely():
    pd = ProtectionDomain()
    region = pd.reg_mr(mmap.mmap(-1, 8192), virtual_address=0x1234)
    assert region.sge(10, 5) == Sge(0x1234 + 10, 5, region.lkey)
    assert region.sge(8000).length == 192
    assert pd.local(region.sge(), write=True) is not None
    assert pd.reg_mr(bytearray(1), AccessFlags(0)).rkey != region.rkey


def test_regions_do_not_overlap():
    pd = ProtectionDomain()
    big, small = pd.reg_mr(bytearray(5 << 20)), pd.reg_mr(bytearray(1))
    assert big.virtual_address + big.length <= small.virtual_address


def test_remote_write_needs_local_write():
    with pytest.raises(ValueError, match="LOCAL_WRITE"):
        ProtectionDomain().reg_mr(bytearray(1), AccessFlags.REMOTE_WRITE)


# instruments


def test_trace_tells_the_story_of_a_loss():
    a, b = pair("go-back-n", psn=(1 << 24) - 1)
    write(a, a.region(payload(4 * 256)), b.region(4 * 256))
    events = {"a": [], "b": []}
    a.qp.trace = lambda now, event, psn: events["a"].append((event, psn - (1 << 24)))
    b.qp.trace = lambda now, event, psn: events["b"].append((event, psn - (1 << 24)))
    Link(a, b, drop_data(1)).run()
    assert events["a"] == [
        ("send", -1),
        ("send", 0),
        ("send", 1),
        ("send", 2),
        ("nak", 0),
        ("resend", 0),
        ("resend", 1),
        ("resend", 2),
        ("ack", 0),
        ("ack", 2),
    ]
    assert events["b"] == [
        ("receive", -1),
        ("out-of-order", 1),
        ("out-of-order", 2),
        ("receive", 0),
        ("receive", 1),
        ("receive", 2),
    ]


def test_counters_as_dict():
    a, b = pair()
    write(a, a.region(payload(300)), b.region(300))
    Link(a, b).run()
    counters = a.qp.counters.as_dict()
    assert counters["sent_packets"] == 2
    assert counters["sent_bytes"] == 300
    assert b.qp.counters.acks_sent == counters["acks_received"] == 1
