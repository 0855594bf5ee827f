"""Chakra traces: the published layouts replay, incomplete and damaged ones are refused."""

from __future__ import annotations

import gzip
import json

import pytest
from chakra_files import COLL, COMP, RECV, SEND, et, node, number, text, varint
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.collectives.request import Collective
from traffic.replay import NodeKind, TraceError
from traffic.replay.chakra import chakra_trace, files_by_rank, read_chakra
from traffic.replay.protobuf import read_varint, signed, zigzag

MEGABYTE = 1048576


def microbenchmark(kind=0):
    """astra-sim's all_reduce/8npus_1MB: one COMM_COLL a rank, zero-valued fields absent."""
    return et(node(1, COLL, "All-Reduce", is_cpu_op=0, comm_type=kind, comm_size=MEGABYTE))


def ring(ranks, size):
    """One lap of a ring: rank 0 sends first, the others pass on what they got."""
    files = []
    for rank in range(ranks):
        following, before = (rank + 1) % ranks, (rank - 1) % ranks
        send = {"comm_dst": following, "comm_src": rank, "comm_size": size, "comm_tag": 3}
        receive = {"comm_dst": rank, "comm_src": before, "comm_size": size, "comm_tag": 3}
        if rank == 0:
            files.append(et(node(0, SEND, "s", **send), node(1, RECV, "r", deps=[0], **receive)))
        else:
            files.append(et(node(0, RECV, "r", **receive), node(1, SEND, "s", deps=[0], **send)))
    return files


def test_the_published_microbenchmark_layout():
    data = microbenchmark()
    assert len(data) <= 100  # the published files have 81 bytes
    bare = et(node(1, COLL, "All-Reduce", comm_size=MEGABYTE))  # not even the attribute's name
    assert chakra_trace([bare] * 8) == chakra_trace([data] * 8)
    trace = chakra_trace([data] * 8)
    assert trace.world_size == 8
    for nodes in trace.ranks:
        (only,) = nodes
        assert only.kind is NodeKind.COLLECTIVE
        assert only.collective is Collective.ALL_REDUCE
        assert only.size == MEGABYTE
        assert trace.members(only.group) == tuple(range(8))


@pytest.mark.parametrize(
    ("number", "collective"),
    [(2, "all-gather"), (5, "broadcast"), (6, "all-to-all"), (7, "reduce-scatter")],
)
def test_types_of_collectives(number, collective):
    (trace, _) = chakra_trace([microbenchmark(number)] * 2).ranks
    assert trace[0].collective == collective


def test_sends_and_receives_keep_their_dependencies():
    trace = chakra_trace(ring(4, 131072))
    send, receive = trace.ranks[0]
    assert (send.kind, send.peer, send.tag, send.size) == (NodeKind.SEND, 1, 3, 131072)
    assert (receive.kind, receive.peer, receive.dependencies) == (NodeKind.RECEIVE, 3, (0,))
    assert trace.ranks[2][1].dependencies == (0,)


def test_a_ring_in_which_everyone_waits_first_is_refused():
    files = ring(3, 8)
    files[0] = et(
        node(0, RECV, "r", comm_src=2, comm_tag=3, comm_size=8),
        node(1, SEND, "s", comm_dst=1, comm_tag=3, comm_size=8, deps=[0]),
    )
    with pytest.raises(TraceError, match="waits for itself"):
        chakra_trace(files)


@pytest.mark.parametrize("packed", [True, False])
def test_compute_nodes_and_both_kinds_of_dependencies(packed):
    data = et(
        node(5, COMP, "a", duration=1500),
        node(6, COMP, "b", duration=1),
        node(7, COMP, "c", deps=[5, 6], ctrl_deps=[5], packed=packed),
    )
    a, b, c = chakra_trace([data]).ranks[0]
    assert a.duration == pytest.approx(1.5e-3)
    assert b.duration == pytest.approx(1e-6)
    assert c.dependencies == (5, 6)


def test_operations_become_time_at_a_given_rate():
    data = et(node(1, COMP, "matmul", num_ops=2 * 10**12))
    with pytest.raises(TraceError, match=r"node 1 'matmul': a COMP_NODE with num_ops but no dur"):
        chakra_trace([data])
    assert chakra_trace([data], compute_rate=4e14).ranks[0][0].duration == pytest.approx(5e-3)


def test_gzipped_files_are_the_same(tmp_path):
    paths = []
    for rank in (1, 0):
        paths.append(tmp_path / f"trace.{rank}.et.gz")
        paths[-1].write_bytes(gzip.compress(microbenchmark()))
    ordered = files_by_rank(paths)
    assert [path.name for path in ordered] == ["trace.0.et.gz", "trace.1.et.gz"]
    assert read_chakra(ordered).ranks == chakra_trace([microbenchmark()] * 2).ranks


def test_files_are_named_when_something_is_wrong_with_them(tmp_path):
    with pytest.raises(TraceError, match=r"none\.0\.et: cannot be read: No such file"):
        read_chakra([tmp_path / "none.0.et"])
    with pytest.raises(TraceError, match=r"no file of rank 1; there are 2 files"):
        files_by_rank([tmp_path / "t.0.et", tmp_path / "t.2.et"])
    with pytest.raises(TraceError, match="no rank in the name"):
        files_by_rank([tmp_path / "trace.et"])
    with pytest.raises(TraceError, match="rank 0 has a file already"):
        files_by_rank([tmp_path / "a.0.et", tmp_path / "b.0.et"])


def test_process_groups_by_name_or_as_given():
    def of(name):
        return et(node(1, COLL, "c", comm_size=64, pg_name=name))

    files = [of("left"), of("left"), of("right"), of("right")]
    trace = chakra_trace(files)
    assert trace.members("right") == (2, 3)
    assert chakra_trace(files, groups={"left": [1, 0], "right": [2, 3]}).members("left") == (1, 0)
    with pytest.raises(TraceError, match="members of group 'right' are not given"):
        chakra_trace(files, groups={"left": [0, 1]})


def test_the_json_form_says_the_same():
    graph = [
        {"Id": 1, "Name": "fwd", "NodeType": 4, "is_cpu_op": False, "runtime": 250},
        {
            "Id": 2, "Name": "ar", "NodeType": 7, "data_deps": [1], "comm_type": 0,
            "comm_size": 4096,
        },
    ]  # fmt: skip
    data = json.dumps({"workload_graph": graph}).encode()
    same = et(node(1, COMP, "fwd", duration=250), node(2, COLL, "ar", deps=[1], comm_size=4096))
    assert chakra_trace([data, data]).ranks == chakra_trace([same, same]).ranks


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([et(node(7, COLL, "c10d::broadcast_", comm_type=5))], "rank 0, node 7 'c10d::broadcast_"
         "': a COMM_COLL_NODE without comm_size; traces of older schemas"),
        ([et(node(3, SEND, "s"))], "node 3 's': a COMM_SEND_NODE without comm_size"),
        ([et(node(1, COLL, comm_size=1, comm_type=12))], "comm_type 12; allowed: 0 to 9"),
        ([et(node(4, 9))], "node 4 '': type 9; allowed: 1 METADATA_NODE"),
        ([et(node(4, COMP, deps=[2]))], "node 4 '': depends on node 2, which the trace does not"),
        ([et(node(4, COMP), node(4, COMP))], "node 4: the id is there twice"),
        ([et(node(4, COMP, deps=[4]))], "node 4 '': waits for itself"),
        ([et()], "the file holds no node"),
        ([b""], "the file holds no node"),
        ([], "no files"),
        ([et(number(1, 9) + text(3, "COMP"))], "message 1: node 9 '': field 3 has wire type 2; "
         "this is no Node of Chakra's schema 0.0.4"),
        ([et(node(1, SEND, comm_src=2, comm_dst=1, comm_size=1))], "comm_src is 2 in the trace of"
         " rank 0"),
        ([et(node(1, SEND, comm_dst=9, comm_size=1))], "send with rank 9; allowed: another of"),
        ([et(node(1, SEND, comm_dst=1, comm_size=1)), et(node(1, COMP))], "1 sends and 0 receives "
         "from rank 0 to rank 1 with tag 0"),
        ([et(node(1, COLL, comm_size=8)), et(node(1, COLL, comm_size=9))], "all-reduce of 9 bytes "
         "where rank 0 has all-reduce of 8 bytes"),
        ([et(node(1, COLL, comm_size=8)), et(node(1, COMP))], "rank 1: 0 collectives of group "
         "'world', other members have 1"),
        ([et(node(1, COMP))[:-1]], "offset 8: 4 bytes announced, 3 are left"),
        ([b"\x1f\x8bnothing"], "rank 0, gzip: "),
        ([b'{"workload_graph": [{"NodeType": 4}]}'], "workload_graph[0]: no Id"),
        ([b'{"workload_graph": [{"Id": -1, "NodeType": 4}]}'], "Id: -1; allowed: whole numbers"),
        ([b'{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": 1e999}]}'], "runtime is inf"),
        ([b'{"workload_graph": 3}'], "no list workload_graph"),
        ([b"{" * 100], "JSON: "),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_said_in_one_line(files, message):
    with pytest.raises(TraceError) as error:
        chakra_trace(files)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varints(value, rest):
    data = varint(value) + rest
    assert read_varint(data, 0) == (value, len(varint(value)))
    for end in range(len(varint(value))):
        with pytest.raises(TraceError, match="the data end"):
            read_varint(data[:end], 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers(value):
    assert signed(value % 2**64) == value
    assert zigzag((value << 1) ^ (value >> 63)) == value


def test_endless_varints_are_refused():
    with pytest.raises(TraceError, match="more than 10 bytes"):
        read_varint(b"\x80" * 20, 0)
    with pytest.raises(TraceError, match="more than 64 bits"):
        read_varint(b"\xff" * 9 + b"\x7f", 0)


WHOLE = et(
    node(1, COMP, "fwd", duration=9, is_cpu_op=1),
    node(2, COLL, "ar", deps=[1], comm_size=77, comm_type=2, pg_name="dp"),
    node(3, COMP, "bwd", ctrl_deps=[1, 2]),
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_give_a_trace_or_a_trace_error(data):
    damaged = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        trace = chakra_trace([bytes(damaged)])
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert trace.world_size == 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_trace_or_a_trace_error(data):
    for prefix in (b"", b"\x1f\x8b\x08\x00", b'{"workload_graph": ['):
        try:
            chakra_trace([prefix + data])
        except TraceError as error:
            assert str(error).startswith("chakra: rank 0")
