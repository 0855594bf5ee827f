"""The hash: published MurmurHash3 vectors, and the properties that routing relies on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.entries import HashAlgorithm, HashFields
from controllers.hashing import FiveTuple, finish, flow_hash, link_of, mix

addresses = st.ip_addresses(v=4).map(str)
ports = st.integers(0, 65535)
bases = st.integers(0, 65535)
hashes = st.integers(0, 2**32 - 1)
flows = st.builds(FiveTuple, addresses, addresses, ports, ports, st.sampled_from((1, 6, 17)))


@pytest.mark.parametrize(
    ("seed", "word", "digest"),
    [
        (0, b"test", 0xBA6BD213),
        (0x9747B28C, b"test", 0x704B81DC),
        (0x9747B28C, b"aaaa", 0x5A97808A),
    ],
)
def test_mixing_is_murmur3(seed: int, word: bytes, digest: int) -> None:
    assert finish(mix(seed, int.from_bytes(word, "little")) ^ len(word)) == digest


@given(flows, bases, st.sampled_from(HashFields))
def test_both_directions_hash_alike(flow: FiveTuple, basis: int, fields: HashFields) -> None:
    back = FiveTuple(
        flow.destination_ip,
        flow.source_ip,
        flow.destination_port,
        flow.source_port,
        flow.protocol,
    )
    assert flow_hash(flow, fields=fields, basis=basis) == flow_hash(
        back, fields=fields, basis=basis
    )


@pytest.mark.parametrize(
    ("fields", "protocol", "distinct"),
    [
        (HashFields.SYMMETRIC_L3L4_UDP, 17, True),
        (HashFields.SYMMETRIC_L3L4, 17, False),
        (HashFields.SYMMETRIC_L3L4, 6, True),
        (HashFields.SYMMETRIC_L3L4_UDP, 1, False),
    ],
)
def test_which_ports_count(fields: HashFields, protocol: int, distinct: bool) -> None:
    values = {
        flow_hash(FiveTuple("10.1.0.1", "10.2.0.1", port, 4791, protocol), fields=fields, basis=1)
        for port in range(49152, 49216)
    }
    assert len(values) == (64 if distinct else 1)


@given(hashes, st.integers(1, 256), st.sampled_from(HashAlgorithm))
def test_link_is_in_range(value: int, links: int, algorithm: HashAlgorithm) -> None:
    assert 0 <= link_of(value, algorithm=algorithm, links=links) < links


def test_threshold_cuts_the_hash_space_into_equal_regions() -> None:
    def link(value: int) -> int:
        return link_of(value, algorithm=HashAlgorithm.HASH_THRESHOLD, links=4)

    assert [link(0), link(2**30 - 1), link(2**30), link(2**32 - 1)] == [0, 0, 1, 3]
