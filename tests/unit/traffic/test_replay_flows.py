"""Flow files and flow-size distributions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.replay import NodeKind, TraceError
from traffic.replay.flow_sizes import (
    FlowSizes,
    flow_size_names,
    parse_flow_sizes,
    published_flow_sizes,
)
from traffic.replay.flows import flows_trace, generate_flows, parse_flows

FLOWS = b"""3
0 1 3 100 20000 2.000001
2 0 3 100 1 2.0
1 2 3 100 5000 2.5
"""


def test_flows_of_a_file_start_at_zero():
    flows = parse_flows(FLOWS, hosts=3)
    assert [(f.source, f.destination, f.size, f.priority) for f in flows] == [
        (0, 1, 20000, 3), (2, 0, 1, 3), (1, 2, 5000, 3),
    ]  # fmt: skip
    assert [f.start for f in flows] == pytest.approx([1e-6, 0, 0.5])
    assert parse_flows(FLOWS, hosts=3, rebase=False)[1].start == 2.0


def test_files_without_priority_and_port():
    (flow,) = parse_flows(b"# made by hand\n1\n4 2 1000 1e-3\n", hosts=5, rebase=False)
    assert (flow.source, flow.destination, flow.size, flow.start) == (4, 2, 1000, 1e-3)


def test_a_flow_is_a_send_at_its_start_and_a_receive():
    trace = flows_trace(parse_flows(FLOWS, hosts=3), hosts=3)
    send, receive = trace.ranks[0]
    assert (send.kind, send.peer, send.size) == (NodeKind.SEND, 1, 20000)
    assert send.start == pytest.approx(1e-6)
    assert (receive.kind, receive.peer, receive.start) == (NodeKind.RECEIVE, 2, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"3\n0", b"2\n0", "2 flows announced, 3 are there"),
        (b"3\n0", b"0", "first line is not the number"),
        (b"3\n0", b"9999999\n0", "line 1: 9999999 flows; at most"),
        (b"0 1 3 100", b"0 1 3", "line 2: 5 columns; allowed: 6 or 4"),
        (b"0 1 3", b"0 7 3", "line 2: host 7; allowed: 0 to 2"),
        (b"0 1 3", b"1 1 3", "line 2: host 1 sends to itself"),
        (b"20000", b"0", "line 2: a flow of 0 bytes"),
        (b"20000", b"2e4", "line 2: '2e4'; allowed: whole numbers"),
        (b"2.000001", b"-1", "line 2: start '-1'; allowed: seconds from 0"),
        (b"2.000001", b"nan", "line 2: start 'nan'"),
    ],
)
def test_bad_flow_files_are_refused_with_the_line(old, new, message):
    with pytest.raises(TraceError, match=message):
        parse_flows(FLOWS.replace(old, new, 1), hosts=3)


@pytest.mark.parametrize("name", flow_size_names())
def test_published_distributions(name):
    sizes = published_flow_sizes(name)
    for size, percent in sizes.points[:-1]:
        assert sizes.quantile(percent / 100) == pytest.approx(max(1, size), abs=1)
    assert sizes.quantile(0.9999999) <= sizes.points[-1][0]
    samples = [sizes.quantile((i + 0.5) / 4000) for i in range(4000)]
    assert sum(samples) / len(samples) == pytest.approx(sizes.mean(), rel=0.01)


def test_known_quantiles_and_mean():
    # half of FB_Hadoop's flows are below 700 B, a third of WebSearch's above 1 MB
    assert published_flow_sizes("fb-hadoop").quantile(0.5) == 700
    assert published_flow_sizes("web-search").quantile(0.7) == 1_000_000
    assert FlowSizes(((0, 0), (100, 50), (300, 100))).mean() == pytest.approx(25 + 100)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_quantiles_grow(one, other):
    sizes = published_flow_sizes("web-search")
    low, high = sorted((one, other))
    assert 1 <= sizes.quantile(low) <= sizes.quantile(high) <= 30_000_000


def test_distributions_from_files():
    assert parse_flow_sizes(b"0 0\n\n10 40 # small\n20.5 100\n").points == (
        (0, 0), (10, 40), (20.5, 100),
    )  # fmt: skip
    for text, message in (
        (b"0 0\n10\n", "line 2: '10'; allowed: bytes and percent"),
        (b"0 0\n10 50\n5 100\n", "after 10 bytes 50 % comes 5 bytes 100 %"),
        (b"0 0\n10 50\n", "from 0 to 50 %; must be 0 to 100"),
        (b"1 100\n", "1 points; at least 2"),
    ):
        with pytest.raises(TraceError, match=message):
            parse_flow_sizes(text)
    with pytest.raises(ValueError, match="unknown flow sizes 'web'; allowed: fb-hadoop, web-se"):
        published_flow_sizes("web")


def test_generated_flows_reach_the_load_and_repeat():
    sizes = FlowSizes(((0, 0), (20_000, 100)))
    arguments = {"hosts": 4, "load": 0.5, "rate": 10e9, "duration": 8e-3}
    flows = generate_flows(sizes, seed=3, **arguments)
    assert flows == generate_flows(sizes, seed=3, **arguments)
    assert flows != generate_flows(sizes, seed=4, **arguments)
    assert all(f.source != f.destination and f.start < 8e-3 for f in flows)
    assert [f.start for f in flows] == sorted(f.start for f in flows)
    # 2000 flows: the standard deviation of their bytes is below 3 %
    offered = sum(f.size for f in flows) * 8 / (4 * 10e9 * 8e-3)
    assert offered == pytest.approx(0.5, rel=0.1)
    assert {(f.source, f.destination) for f in flows} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": 1}, "hosts: 1; at least 2"),
        ({"load": 1.5}, "load: 1.5; allowed: above 0, at most 1"),
        ({"duration": 0}, "for 0 s; allowed: above 0"),
        ({"duration": 1e6}, "flows; at most"),
    ],
)
def test_impossible_loads_are_refused(change, message):
    arguments = {"hosts": 4, "load": 0.5, "rate": 10e9, "duration": 1e-3, "seed": 1} | change
    with pytest.raises(TraceError, match=message):
        generate_flows(published_flow_sizes("fb-hadoop"), **arguments)
