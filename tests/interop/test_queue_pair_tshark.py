"""Wireshark reads what queue pairs send, selective NAKs included, as valid RoCEv2."""

from __future__ import annotations

import pytest
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from tests.unit.traffic.qp_link import RECOVERIES, Link, drop_data, pair, payload, write
from tests.wireshark import fields, matching, needs_tshark
from traffic.opcodes import Operation

pytestmark = needs_tshark


@pytest.fixture(scope="module", params=RECOVERIES)
def captured(request, tmp_path_factory):
    """A pcap of a transfer that loses three packets, its frames, and the name of its recovery."""
    a, b = pair(request.param, path_mtu=1024)
    write(a, a.region(payload(100_000)), b.region(100_000))
    link = Link(a, b, drop_data(0, 20, 50))
    link.run()
    path = tmp_path_factory.mktemp("tshark") / "transfer.pcap"
    wrpcap(str(path), [Ether(frame) for frame in link.frames])
    return path, link.frames, request.param


def test_every_frame_is_a_valid_roce_packet(captured):
    path, frames, _ = captured
    assert matching(path, "infiniband && udp.dstport == 4791") == len(frames) > 100
    assert matching(path, "_ws.malformed || _ws.expert.severity >= 0x600000") == 0


def test_naks_are_shown_as_psn_sequence_errors(captured):
    path, frames, recovery = captured
    naks = [frame for frame in frames if frame[42] == Operation.ACKNOWLEDGE and frame[54] == 0x60]
    rows = fields(path, "frame.len", display_filter="infiniband.aeth.syndrome == 0x60")
    assert len(rows) == len(naks) >= 1
    # AETH and ICRC alone, or with the block between them.
    assert {int(length) for (length,) in rows} == {70 if recovery == "selective-repeat" else 62}
