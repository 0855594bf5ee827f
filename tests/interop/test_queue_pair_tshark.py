"""Wireshark reads what queue pairs send, selective NAKs included, as valid RoCEv2."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from tests.unit.traffic.qp_link import RECOVERIES, Link, drop_data, pair, payload, write
from traffic.opcodes import Operation

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


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


def tshark(path, *arguments):
    result = subprocess.run(
        ["tshark", "-r", str(path), *arguments], capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def test_every_frame_is_a_valid_roce_packet(captured):
    path, frames, _ = captured
    assert len(tshark(path, "-Y", "infiniband && udp.dstport == 4791")) == len(frames) > 100
    assert tshark(path, "-Y", "_ws.malformed || _ws.expert.severity >= 0x600000") == []


def test_naks_are_shown_as_psn_sequence_errors(captured):
    path, frames, recovery = captured
    naks = [frame for frame in frames if frame[42] == Operation.ACKNOWLEDGE and frame[54] == 0x60]
    rows = tshark(path, "-Y", "infiniband.aeth.syndrome == 0x60", "-T", "fields", "-e", "frame.len")
    assert len(rows) == len(naks) >= 1
    # AETH and ICRC alone, or with the block between them.
    assert {int(row) for row in rows} == {70 if recovery == "selective-repeat" else 62}
