"""The scapy layers: known-answer vectors, header choice, pad, ICRC, ports, pause frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib import roce
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from traffic.packets import (
    AETH,
    BTH,
    DETH,
    FETH,
    GRH,
    IETH,
    OPCODE_NAMES,
    OPCODES,
    RC,
    RDETH,
    RETH,
    AtomicAckETH,
    AtomicETH,
    ImmDt,
    cnp,
    extension_headers,
    payload_of,
    pfc,
)

NETWORK = IP(src="10.0.0.1", dst="10.0.0.2", tos=0x68, id=1, flags="DF") / UDP()

# Frames from the IP header on, made by an encoder of struct and zlib alone.
VECTORS = {
    "write only": (
        BTH(opcode=0x0A, dqpn=0x11, psn=1, ackreq=1)
        / RETH(va=0x1000, rkey=0x1234, dmalen=8)
        / Raw(bytes(range(8))),
        "45680044000140004011263e0a0000010a000002c00012b7003000000a00ffff0000001180000001"
        "000000000000100000001234000000080001020304050607a04adafb",
    ),
    "write only with immediate": (
        BTH(opcode=0x0B, dqpn=0x11, psn=2, ackreq=1) / RETH() / ImmDt(immediate=0xDEADBEEF),
        "4568004000014000401126420a0000010a000002c00012b7002c00000b00ffff0000001180000002"
        "00000000000000000000000000000000deadbeefa9ec3eb0",
    ),
    "send only with pad": (
        BTH(opcode=0x04, dqpn=0x11, psn=3, ackreq=1) / Raw(b"abc"),
        "4568003000014000401126520a0000010a000002c00012b7001c00000410ffff0000001180000003"
        "61626300e044344b",
    ),
    "ack": (
        BTH(opcode=0x11, dqpn=0x12, psn=1) / AETH(syndrome=0x1F, msn=1),
        "4568003000014000401126520a0000010a000002c00012b7001c00001100ffff0000001200000001"
        "1f0000014b123a7a",
    ),
    "nak sequence error": (
        BTH(opcode=0x11, dqpn=0x12, psn=5) / AETH(syndrome=0x60, msn=1),
        "4568003000014000401126520a0000010a000002c00012b7001c00001100ffff0000001200000005"
        "600000014104e6bc",
    ),
    "cnp": (
        cnp(0x12),
        "4568003c00014000401126460a0000010a000002c00012b7002800008100ffff4000001200000000"
        "00000000000000000000000000000000e99ce797",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_known_answers(name):
    transport, expected = VECTORS[name]
    assert bytes(NETWORK / transport).hex() == expected


@pytest.mark.parametrize(
    ("name", "headers", "length"),
    [
        ("RC_SEND_MIDDLE", (), 0),
        ("RC_SEND_LAST_WITH_IMMEDIATE", (ImmDt,), 4),
        ("UC_RDMA_WRITE_FIRST", (RETH,), 16),
        ("RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", (RETH, ImmDt), 20),
        ("RC_RDMA_READ_RESPONSE_FIRST", (AETH,), 4),
        ("RC_RDMA_READ_RESPONSE_MIDDLE", (), 0),
        ("RC_ATOMIC_ACKNOWLEDGE", (AETH, AtomicAckETH), 12),
        ("RC_COMPARE_SWAP", (AtomicETH,), 28),
        ("RC_SEND_ONLY_WITH_INVALIDATE", (IETH,), 4),
        ("RC_FLUSH", (FETH, RETH), 20),
        ("RC_ATOMIC_WRITE", (RETH,), 16),
        ("UD_SEND_ONLY_WITH_IMMEDIATE", (DETH, ImmDt), 12),
        ("RD_SEND_ONLY", (RDETH, DETH), 12),
        ("RD_ACKNOWLEDGE", (RDETH, AETH), 8),
        ("CNP", (roce.CNPPadding,), 16),
    ],
)
def test_headers_behind_the_bth(name, headers, length):
    assert extension_headers(OPCODES[name]) == headers
    assert sum(len(bytes(header())) for header in headers) == length


def test_unknown_opcodes_have_no_headers():
    with pytest.raises(KeyError):
        extension_headers(0x15)
    packet = IP(bytes(NETWORK / BTH(opcode=0xFF) / Raw(b"1234")))
    assert payload_of(packet) == b"1234"


def test_contrib_agrees_on_the_opcodes_it_knows():
    ours = {name.replace("FETCHADD", "FETCH_ADD"): op for name, op in OPCODES.items()}
    for opcode, name in roce._bth_opcodes.items():
        assert ours[name] == opcode


def headers_strategy(opcode):
    def of(header):
        fields = {
            field.name: st.integers(0, 2 ** round(field.sz * 8) - 1) for field in header.fields_desc
        }
        return st.builds(header, **fields)

    return st.tuples(*(of(header) for header in extension_headers(opcode)))


@st.composite
def transports(draw):
    opcode = draw(st.sampled_from(sorted(OPCODE_NAMES)))
    packet = BTH(
        opcode=opcode,
        solicited=draw(st.integers(0, 1)),
        migreq=draw(st.integers(0, 1)),
        fecn=draw(st.integers(0, 1)),
        becn=draw(st.integers(0, 1)),
        dqpn=draw(st.integers(0, 0xFFFFFF)),
        ackreq=draw(st.integers(0, 1)),
        psn=draw(st.integers(0, 0xFFFFFF)),
    )
    for header in draw(headers_strategy(opcode)):
        packet /= header
    payload = draw(st.binary(max_size=40))
    return (packet / Raw(payload) if payload else packet), payload


@given(transports())
def test_what_is_built_is_dissected(case):
    packet, payload = case
    wire = bytes(NETWORK / packet)
    assert len(wire) % 4 == 0
    found = IP(wire)
    assert payload_of(found) == payload
    assert found[BTH].padcount == -len(payload) % 4
    layer, made = found[BTH], packet
    while made and not isinstance(made, Raw):
        assert type(layer) is type(made)
        for field in made.fields_desc:
            if field.name not in ("padcount", "icrc"):
                assert layer.getfieldval(field.name) == made.getfieldval(field.name)
        layer, made = layer.payload, made.payload


@given(transports(), st.sampled_from(["ipv4", "ipv6"]))
def test_contrib_computes_the_same_icrc(case, family):
    """scapy's own ICRC, on packets whose headers it can represent as raw bytes."""
    packet, _ = case
    network = NETWORK if family == "ipv4" else IPv6(src="::1", dst="::2", tc=3, fl=7) / UDP()
    wire = bytes(network / packet)
    offset = len(network)
    fields = {name: value for name, value in BTH(wire[offset:]).fields.items() if name != "icrc"}
    theirs = network / roce.BTH(**fields) / Raw(wire[offset + 12 : -4])
    theirs[UDP].sport, theirs[UDP].dport, theirs[UDP].chksum = 49152, 4791, 0
    assert bytes(theirs) == wire


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 1))
def test_icrc_ignores_what_switches_change(tos, ttl, fecn):
    def icrc(**fields):
        network = IP(src="10.0.0.1", dst="10.0.0.2", id=1, **fields.pop("ip", {}))
        return bytes(network / UDP() / BTH(opcode=4, **fields) / Raw(b"data"))[-4:]

    assert icrc(ip={"tos": tos, "ttl": ttl}, fecn=fecn) == icrc()
    assert icrc(psn=1) != icrc()


def test_ports_and_checksum_are_preset():
    packet = IP(bytes(NETWORK / BTH(opcode=4)))
    assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].chksum) == (49152, 4791, 0)


@pytest.mark.parametrize("sport", [53, 69, 4500, 4789, 6081])
def test_any_source_port_is_roce(sport):
    """scapy would take port 53 for DNS, and so on."""
    packet = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=sport) / BTH(opcode=4)
    assert BTH in Ether(bytes(packet))


def test_roce_v1():
    packet = Ether() / GRH(sgid=1, dgid=2) / BTH(opcode=RC | 0x11) / AETH(syndrome=0x1F)
    found = Ether(bytes(packet))
    assert [type(found[layer]) for layer in (GRH, BTH, AETH)] == [GRH, BTH, AETH]
    assert found[BTH].icrc != 0


def test_no_icrc_without_a_network_layer():
    with pytest.raises(ValueError, match="no ICRC"):
        bytes(UDP() / BTH(opcode=4))


def test_pause_frame():
    frame = Ether(bytes(pfc("02:00:00:00:00:01", {0: 1, 7: 0x1234})))
    assert len(frame) == 60
    assert frame.dst == "01:80:c2:00:00:01"
    pause = frame[MACControlClassBasedFlowControl]
    assert [pause.getfieldval(f"c{n}_enabled") for n in range(8)] == [1, 0, 0, 0, 0, 0, 0, 1]
    assert [pause.c0_pause_time, pause.c1_pause_time, pause.c7_pause_time] == [1, 0, 0x1234]
    assert bytes(frame)[12:18].hex() == "880801010081"
