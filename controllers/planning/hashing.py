"""The switches' hashes over arrays of flows.

``controllers.hashing.mix`` and ``finish`` work on Python's integers and on arrays of uint64 alike,
because no product of theirs exceeds 64 bits; here they are fed with columns of header fields.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from controllers.entries import HashAlgorithm, HashFields
from controllers.hashing import IPPROTO_UDP, ROCE_PORT, finish, link_of, mix
from controllers.planning.fabric import IntArray

HashArray = npt.NDArray[np.uint64]

# The shared functions are annotated for int.
_mix = cast(Callable[[HashArray, HashArray], HashArray], mix)
_finish = cast(Callable[[HashArray], HashArray], finish)
_link_of = cast(Callable[..., HashArray], link_of)


def flow_hashes(
    sources: IntArray,
    destinations: IntArray,
    source_ports: IntArray,
    *,
    fields: HashFields,
    bases: IntArray,
) -> HashArray:
    """``controllers.hashing.flow_hash`` of RoCEv2 flows, each with a basis of its own.

    Addresses are the numbers that their network-order bytes spell.
    """
    basis = bases.astype(np.uint64)
    value = _mix(basis.copy(), _host_order(sources ^ destinations, 4))
    value = _mix(value, np.full(len(value), IPPROTO_UDP, dtype=np.uint64))
    if fields is HashFields.SYMMETRIC_L3L4_UDP:
        value = _mix(value, _host_order(source_ports ^ ROCE_PORT, 2))
    return _finish(value ^ basis)


def label_hashes(
    sources: IntArray,
    destinations: IntArray,
    source_ports: IntArray,
    destination_qps: IntArray,
    *,
    seeds: IntArray,
    use_destination_qp: bool,
) -> HashArray:
    """``controllers.labels.label_hash`` of RoCEv2 flows, each with a seed of its own."""
    words = [
        sources,
        destinations,
        source_ports << 16 | ROCE_PORT,
        np.full(len(sources), IPPROTO_UDP),
    ]
    if use_destination_qp:
        words.append(destination_qps)
    value = seeds.astype(np.uint64)
    for word in words:
        value = _mix(value, word.astype(np.uint64))
    return _finish(value ^ np.uint64(4 * len(words)))


def links_of(values: HashArray, *, algorithm: HashAlgorithm, links: IntArray) -> IntArray:
    """``controllers.hashing.link_of`` of hashes, each with its own number of links."""
    chosen = np.zeros(len(values), dtype=np.int64)
    for count in np.unique(links).tolist():
        where = links == count
        chosen[where] = _link_of(values[where], algorithm=algorithm, links=count)
    return chosen


def _host_order(values: IntArray, size: int) -> HashArray:
    """Numbers of ``size`` network-order bytes, as the host's CPU reads those bytes."""
    order = "<" if sys.byteorder == "little" else ">"
    swapped = values.astype(f">u{size}").view(f"{order}u{size}")
    return swapped.astype(np.uint64)
