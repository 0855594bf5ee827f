"""Wireshark reads what scapy's layers write: same fields, nothing malformed."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from tests.wireshark import fields, matching, needs_tshark
from traffic.packets import BTH, OPCODE_NAMES, OPCODES, cnp, extension_headers, pfc

pytestmark = needs_tshark

# Wireshark 4.0 takes RD opcodes for DC ones, and does not know FLUSH and ATOMIC_WRITE, new in
# version 1.5 of the specification.
KNOWN = sorted(
    opcode
    for name, opcode in OPCODES.items()
    if not name.startswith("RD_") and not name.endswith(("FLUSH", "ATOMIC_WRITE"))
)
WITHOUT_PAYLOAD = ("ACKNOWLEDGE", "READ_REQUEST", "COMPARE_SWAP", "FETCH_ADD")


def frame(opcode, psn, length):
    packet = Ether() / IP(src="10.0.0.1", dst="10.0.0.2", tos=0x6A) / UDP()
    if opcode == OPCODES["CNP"]:
        return packet / cnp(0x1234)
    packet /= BTH(opcode=opcode, dqpn=0x1234, psn=psn, ackreq=psn & 1)
    for header in extension_headers(opcode):
        packet /= header()
    if not OPCODE_NAMES[opcode].endswith(WITHOUT_PAYLOAD):
        packet /= Raw(bytes(range(length)))
    return packet


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("tshark") / "all.pcap"
    frames = [frame(opcode, index, 64 + index % 4) for index, opcode in enumerate(KNOWN)]
    wrpcap(str(path), frames)
    return path, frames


def test_every_opcode_is_infiniband(written):
    path, frames = written
    assert matching(path, "infiniband && udp.dstport == 4791") == len(frames)
    assert matching(path, "_ws.malformed") == 0


def test_fields_agree(written):
    path, frames = written
    names = ["opcode", "padcnt", "destqp", "a", "psn"]
    rows = fields(path, *(f"infiniband.bth.{name}" for name in names))
    assert len(rows) == len(frames)
    for row, packet in zip(rows, frames, strict=True):
        bth = Ether(bytes(packet))[BTH]
        expected = [bth.opcode, bth.padcount, bth.dqpn, bth.ackreq, bth.psn]
        assert [int(value, 0) for value in row] == expected


def test_icrc_is_where_tshark_expects_it(written):
    path, frames = written
    connected = [
        packet for packet in frames if OPCODE_NAMES[packet[BTH].opcode].startswith(("RC", "UC"))
    ]
    icrc = "infiniband.invariant.crc"
    rows = fields(path, icrc, display_filter="infiniband.bth.opcode < 0x60")
    expected = [int.from_bytes(bytes(packet)[-4:], "big") for packet in connected]
    assert [int(value, 0) for (value,) in rows] == expected


def test_pause_frame(tmp_path):
    path = tmp_path / "pfc.pcap"
    wrpcap(str(path), [pfc("02:00:00:00:00:01", {3: 0xFFFF, 5: 0})])
    names = ["macc.opcode", "macc.cbfc.enbv.c3", "macc.cbfc.enbv.c5", "macc.cbfc.enbv.c0"]
    names += ["macc.cbfc.pause_time.c3", "eth.dst"]
    ((opcode, c3, c5, c0, pause, destination),) = fields(path, *names)
    assert [int(opcode, 0), int(c3), int(c5), int(c0), int(pause)] == [0x101, 1, 1, 0, 0xFFFF]
    assert destination == "01:80:c2:00:00:01"
    assert matching(path, "_ws.malformed") == 0
