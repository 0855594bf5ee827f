"""The hash engine's label and the member table's 64 slots."""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.hashing import FiveTuple
from controllers.labels import SLOTS, deal_slots, label_hash, label_of, make_label

FLOW = FiveTuple("10.1.0.1", "10.2.0.9", 50000)

words = st.integers(0, 0xFFFF_FFFF)
addresses = st.ip_addresses(v=4).map(str)
ports = st.integers(0, 0xFFFF)
five_tuples = st.builds(FiveTuple, addresses, addresses, ports, ports, st.integers(0, 255))
qps = st.integers(0, 0xFF_FFFF)


def murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32 of whole 32-bit blocks, written down from its definition."""

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> 32 - by) % 2**32

    value = seed
    for (block,) in struct.iter_unpack("<I", data):
        scrambled = rotate(block * 0xCC9E2D51 % 2**32, 15) * 0x1B873593 % 2**32
        value = (rotate(value ^ scrambled, 13) * 5 + 0xE6546B64) % 2**32
    value ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor % 2**32
    return value


@pytest.mark.parametrize(
    ("data", "seed", "digest"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"!Ce\x87", 0x5082EDEE, 0x2362F9DE),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
        (b"abcd", 0x9747B28C, 0xF0478627),
    ],
)
def test_the_reference_gives_the_published_values(data: bytes, seed: int, digest: int) -> None:
    assert murmur3(data, seed) == digest


@given(five_tuples, qps, words, st.booleans())
def test_the_hash_is_murmur3_of_the_header_fields(
    flow: FiveTuple, qp: int, seed: int, use_qp: bool
) -> None:
    fields = struct.pack(
        "<4I",
        int(ipaddress.IPv4Address(flow.source_ip)),
        int(ipaddress.IPv4Address(flow.destination_ip)),
        flow.source_port << 16 | flow.destination_port,
        flow.protocol,
    )
    if use_qp:
        fields += struct.pack("<I", qp)
    assert label_hash(flow, qp, seed=seed, use_destination_qp=use_qp) == murmur3(fields, seed)


def test_directions_and_queue_pairs_differ() -> None:
    back = FiveTuple(FLOW.destination_ip, FLOW.source_ip, FLOW.destination_port, FLOW.source_port)

    def hashed(flow: FiveTuple, qp: int, use: bool) -> int:
        return label_hash(flow, qp, seed=1, use_destination_qp=use)

    assert hashed(FLOW, 7, True) != hashed(back, 7, True)
    assert hashed(FLOW, 7, True) != hashed(FLOW, 8, True)
    assert hashed(FLOW, 7, False) == hashed(FLOW, 8, False)


@pytest.mark.parametrize("vary", ["port", "qp", "address"])
@pytest.mark.parametrize("seed", [0, 1, 0xFFFF_FFFF])
def test_slots_are_uniform(vary: str, seed: int) -> None:
    """By chi-square over the 64 slots, whichever field varies, and counting up."""
    draws = 64 * SLOTS
    slots: Counter[int] = Counter()
    for number in range(draws):
        flow, qp = FLOW, 17
        if vary == "port":
            flow = FiveTuple(FLOW.source_ip, FLOW.destination_ip, 49152 + number)
        elif vary == "qp":
            qp = number
        else:
            flow = FiveTuple(FLOW.source_ip, f"10.2.{number // 250}.{number % 250 + 1}", 50000)
        slots[label_hash(flow, qp, seed=seed, use_destination_qp=True) % SLOTS] += 1
    expected = draws / SLOTS
    chi_square = sum((slots[slot] - expected) ** 2 / expected for slot in range(SLOTS))
    assert chi_square < 103.4  # 99.9 % point for 63 degrees of freedom


def test_the_two_slots_of_a_label() -> None:
    assert make_label(0b000101, 0b110000) == 0b110000_000101
    assert max(make_label(s, u) for s in range(SLOTS) for u in range(SLOTS)) == 0xFFF
    for qp in range(50):
        label = label_of(FLOW, qp, seed=1, upper_seed=2, use_destination_qp=True)
        first, second = (
            label_hash(FLOW, qp, seed=seed, use_destination_qp=True) % SLOTS for seed in (1, 2)
        )
        assert label == make_label(first, second)
        same = label_of(FLOW, qp, seed=1, upper_seed=1, use_destination_qp=True)
        assert same == make_label(first, first)


# member tables

groups = st.integers(1, 70).flatmap(
    lambda size: st.tuples(
        st.just(list(range(size))), st.sets(st.integers(0, size - 1), min_size=1).map(sorted)
    )
)


@given(groups)
def test_slots_of_live_members_never_move(group: tuple[list[int], list[int]]) -> None:
    members, live = group
    before, after = deal_slots(members, members), deal_slots(members, live)
    assert len(before) == len(after) == SLOTS
    for old, new in zip(before, after, strict=True):
        assert new in live
        assert new == old or old not in live


@given(groups)
def test_slots_of_dead_members_are_dealt_evenly(group: tuple[list[int], list[int]]) -> None:
    members, live = group
    before, after = deal_slots(members, members), deal_slots(members, live)
    gained = Counter(new for old, new in zip(before, after, strict=True) if new != old)
    counts = [gained[member] for member in live]
    assert max(counts) - min(counts) <= 1


def test_a_new_way_takes_all_slots() -> None:
    """When no member of a group is left, packets may still climb by other ports."""
    assert set(deal_slots([1, 2], [7, 8, 9])) == {7, 8, 9}


@pytest.mark.parametrize(("members", "live"), [([1], []), ([], [1])])
def test_nothing_to_deal_is_an_error(members: list[int], live: list[int]) -> None:
    with pytest.raises(ValueError, match="no member"):
        deal_slots(members, live)
