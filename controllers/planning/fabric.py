"""A fabric as arrays: switches, links and NICs by number, for up/down routing at full size.

Switches are numbered from 0 in build order, so a switch's datapath id is its number + 1; links
between switches and NICs are numbered in the order in which they were wired, so that the links of
a switch by number are its ports in port order. Both hold for a ``Topology`` as well, which is why
one can be turned into the other. Rates are in bit/s.

Every direction of a link is an *edge*, again a number:

    0 .. links-1                the way up of each link between switches
    links .. 2 links-1          the way down
    then nics x NIC ports       a NIC's port to its leaf
    then nics x NIC ports       the leaf to the NIC's port
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from controllers.routes import LinkState
from testbed.topology import Interface, NodeKind, Topology

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NIC_TIER = 0


@dataclass(frozen=True)
class ArrayFabric:
    """All that routing needs to know of a fabric.

    ``tiers`` is by switch (1 is a leaf); ``lower``, ``upper``, ``up_rates`` and ``down_rates`` are
    by link; ``nic_leaves`` is the leaf of each port of each NIC. ``leaf_sets`` numbers the leaves'
    destination prefixes: leaves that NICs with two ports join have the same; -1 above the leaves.
    ``addresses`` are the NICs' as integers. ``gpus_per_server`` consecutive NICs share a server.
    """

    name: str
    tiers: IntArray
    lower: IntArray
    upper: IntArray
    up_rates: FloatArray
    down_rates: FloatArray
    nic_leaves: IntArray
    nic_rates: FloatArray
    leaf_sets: IntArray
    addresses: IntArray
    gpus_per_server: int = 1

    @property
    def switches(self) -> int:
        """Number of switches."""
        return len(self.tiers)

    @property
    def links(self) -> int:
        """Number of links between switches."""
        return len(self.lower)

    @property
    def nics(self) -> int:
        """Number of NICs."""
        return len(self.nic_leaves)

    @property
    def nic_ports(self) -> int:
        """Ports of each NIC."""
        return int(self.nic_leaves.shape[1])

    @property
    def edges(self) -> int:
        """Number of edges."""
        return 2 * (self.links + self.nics * self.nic_ports)

    @cached_property
    def sets(self) -> int:
        """Number of destination prefixes."""
        return int(self.leaf_sets.max()) + 1

    @cached_property
    def nic_sets(self) -> IntArray:
        """The destination prefix of each NIC."""
        return self.leaf_sets[self.nic_leaves[:, 0]]

    @cached_property
    def targets(self) -> IntArray:
        """The switch that each edge between switches leads to."""
        return np.concatenate([self.upper, self.lower])

    @cached_property
    def capacities(self) -> FloatArray:
        """Rate of each edge, bit/s."""
        nics = np.repeat(self.nic_rates, self.nic_ports)
        return np.concatenate([self.up_rates, self.down_rates, nics, nics])

    @cached_property
    def edge_tiers(self) -> IntArray:
        """(tier it leaves, tier it enters) of each edge."""
        up = np.stack([self.tiers[self.lower], self.tiers[self.upper]], axis=1)
        nic = np.tile([NIC_TIER, 1], (self.nics * self.nic_ports, 1))
        return np.concatenate([up, up[:, ::-1], nic, nic[:, ::-1]])

    def from_nic(self, nics: IntArray, ports: IntArray) -> IntArray:
        """The edges that NICs' ports transmit on."""
        return 2 * self.links + nics * self.nic_ports + ports

    def to_nic(self, nics: IntArray, ports: IntArray) -> IntArray:
        """The edges that NICs' ports receive from."""
        return self.from_nic(nics, ports) + self.nics * self.nic_ports


def from_topology(topology: Topology) -> ArrayFabric:
    """The same fabric as arrays. Raises ValueError where NICs differ in their number of ports."""
    number = {switch.name: i for i, switch in enumerate(topology.switches)}
    links = _up_links(topology)
    ports = {len(rank.interfaces) for rank in topology.ranks}
    if len(ports) != 1:
        raise ValueError(f"topology {topology.name}: NICs have {sorted(ports)} ports")
    prefixes = {prefix: i for i, prefix in enumerate(dict.fromkeys(topology.prefixes.values()))}
    leaf_sets = np.full(len(number), -1)
    for leaf, prefix in topology.prefixes.items():
        leaf_sets[number[leaf]] = prefixes[prefix]
    servers = {rank.server for rank in topology.ranks}
    return ArrayFabric(
        name=topology.name,
        tiers=np.array([switch.tier for switch in topology.switches]),
        lower=np.array([number[link.node] for link in links], dtype=np.int64),
        upper=np.array([number[link.peer_node] for link in links], dtype=np.int64),
        up_rates=np.array([link.rate for link in links]),
        down_rates=np.array([topology.interfaces[link.peer].rate for link in links]),
        nic_leaves=np.array(
            [
                [number[topology.leaf_of(rank.rank, port)] for port in range(min(ports))]
                for rank in topology.ranks
            ]
        ),
        nic_rates=np.array([topology.nic(rank.rank).rate for rank in topology.ranks]),
        leaf_sets=leaf_sets,
        addresses=np.array(
            [int(ipaddress.IPv4Address(topology.nic(r.rank).address)) for r in topology.ranks]
        ),
        gpus_per_server=len(topology.ranks) // len(servers),
    )


def edge_names(topology: Topology) -> list[str]:
    """The transmitting interface of each edge of ``from_topology``'s fabric."""
    links = _up_links(topology)
    nics = [name for rank in topology.ranks for name in rank.interfaces]
    peers = [topology.interfaces[name].peer for name in nics]
    return [link.name for link in links] + [link.peer for link in links] + nics + peers


def live_links(topology: Topology, state: LinkState) -> BoolArray:
    """Which links between switches carry packets, by their number in ``from_topology``."""
    return np.array([state.up(link) for link in _up_links(topology)], dtype=bool)


def _up_links(topology: Topology) -> list[Interface]:
    """The lower interface of every link between switches, in build order."""

    def tier(node: str) -> int:
        return topology.nodes[node].tier

    return [
        interface
        for interface in topology.interfaces.values()
        if topology.nodes[interface.node].kind is NodeKind.SWITCH
        and topology.nodes[interface.peer_node].kind is NodeKind.SWITCH
        and tier(interface.node) < tier(interface.peer_node)
    ]


class FabricBuilder:
    """Collects the arrays of a fabric that is too large for a ``Topology``."""

    def __init__(self, name: str, *, gpus_per_server: int) -> None:
        self._name = name
        self._gpus_per_server = gpus_per_server
        self._tiers: list[int] = []
        self._lower: list[IntArray] = []
        self._upper: list[IntArray] = []
        self._rates: list[FloatArray] = []

    def switches(self, count: int, *, tier: int) -> IntArray:
        """Add switches of one tier; returns their numbers."""
        first = len(self._tiers)
        self._tiers += [tier] * count
        return np.arange(first, first + count)

    def wire(self, lower: IntArray, upper: IntArray, *, rate: float) -> None:
        """Wire switches pairwise, in the order in which they get their ports."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._rates.append(np.full(len(lower), rate))

    def wire_all(self, lower: IntArray, upper: IntArray, *, rate: float) -> None:
        """Wire every lower switch to every upper one, lower switch by lower switch."""
        self.wire(np.repeat(lower, len(upper)), np.tile(upper, len(lower)), rate=rate)

    def build(self, nic_leaves: IntArray, *, nic_rate: float) -> ArrayFabric:
        """The fabric with one NIC per row of ``nic_leaves``; ``nic_rate`` is that of a port."""
        tiers = np.array(self._tiers)
        rates = np.concatenate(self._rates)
        leaf_sets = _leaf_sets(tiers, nic_leaves)
        return ArrayFabric(
            name=self._name,
            tiers=tiers,
            lower=np.concatenate(self._lower),
            upper=np.concatenate(self._upper),
            up_rates=rates,
            down_rates=rates,
            nic_leaves=nic_leaves,
            nic_rates=np.full(len(nic_leaves), nic_rate),
            leaf_sets=leaf_sets,
            addresses=_addresses(leaf_sets, nic_leaves),
            gpus_per_server=self._gpus_per_server,
        )


def _leaf_sets(tiers: IntArray, nic_leaves: IntArray) -> IntArray:
    """Number the leaves' prefixes in leaf order; leaves with a NIC in common share one."""
    first = np.where(tiers == 1, np.arange(len(tiers)), -1)
    rows = np.unique(nic_leaves, axis=0)
    np.minimum.at(first, rows, rows.min(axis=1, keepdims=True))
    leaves = tiers == 1
    sets = np.full(len(tiers), -1)
    sets[leaves] = np.unique(first[leaves], return_inverse=True)[1]
    return sets


_PREFIX_OCTETS = 250
"""Prefixes up to which each has a second octet of its own, as in a ``Topology``."""

_HOSTS_PER_OCTET = 250


def _addresses(leaf_sets: IntArray, nic_leaves: IntArray) -> IntArray:
    """Addresses as a ``Topology`` gives them; with more prefixes, 10.0.0.0/8 in equal parts."""
    first_leaf = nic_leaves[:, 0]
    sets = leaf_sets[first_leaf]
    slots = count_up(sets)
    net = int(ipaddress.IPv4Address("10.0.0.0"))
    if leaf_sets.max() < _PREFIX_OCTETS:
        firsts = np.unique(leaf_sets, return_index=True)[1][-leaf_sets.max() - 1 :]
        leaf_number = np.cumsum(leaf_sets >= 0) - 1
        octet = leaf_number[firsts][sets] + 1
        host = slots // _HOSTS_PER_OCTET << 8 | slots % _HOSTS_PER_OCTET + 1
        return net + (octet << 16) + host
    part = 1 << (24 - int(leaf_sets.max() + 1).bit_length())
    if slots.max() + 2 >= part:
        raise ValueError(f"{leaf_sets.max() + 1} prefixes leave room for {part - 2} NICs each")
    return net + (sets + 1) * part + slots + 1


def count_up(values: IntArray) -> IntArray:
    """How many equal values came before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    counts = np.empty(len(values), dtype=np.int64)
    counts[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return counts
