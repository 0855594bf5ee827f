"""Building a fabric: ours, with everything in its ports, against stock Mininet of the same size.

Stock is mininet.net.Mininet with OVSSwitch(datapath="user") and TCLink(bw=...), no controller. Its
Open vSwitch runs already when the clock starts, as it does on a machine where Mininet is installed;
ours compiles and loads the buffer program and starts its Open vSwitch within the measured time.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import mininet.log
from mininet.link import TCLink
from mininet.net import Mininet
from mininet.node import OVSSwitch
from mininet.topo import Topo

from testbed.asic.mmu import BufferPolicy
from testbed.fabric import Fabric
from testbed.ovs import OpenVSwitch
from testbed.topology import NodeKind, Topology, create_topology
from tests.bench.table import Row
from tests.isolated import isolated_in_directory

SIZES = ((4, 4, 4), (8, 8, 8))
"""Leaves, spines, servers per leaf."""
DILATION = 10_000.0
LINK_MBPS = 40.0
"""400 Gb/s at that dilation."""


def build_ours(topology: Topology, directory: Path) -> float:
    """Wall seconds until the fabric is built and compared with its plan."""
    start = time.perf_counter()
    fabric = Fabric(
        topology,
        dilation=DILATION,
        policy=BufferPolicy(),
        directory=Path("/run/bench"),
        logs=directory,
    )
    try:
        fabric.build()
        return time.perf_counter() - start
    finally:
        fabric.stop()


class _LeafSpine(Topo):  # type: ignore[misc]
    """The same nodes and links, named as Mininet likes its interfaces."""

    def build(self, topology: Topology) -> None:
        """Add all nodes, then all links."""
        names = {}
        for number, node in enumerate(topology.nodes.values(), 1):
            if node.kind is NodeKind.SERVER:
                names[node.name] = self.addHost(f"h{number}")
            else:
                names[node.name] = self.addSwitch(f"s{number}", dpid=f"{node.datapath_id:016x}")
        done: set[str] = set()
        for interface in topology.interfaces.values():
            if interface.name not in done:
                done.add(interface.peer)
                self.addLink(names[interface.node], names[interface.peer_node])


def build_stock(topology: Topology, directory: Path) -> float:
    """Wall seconds until Mininet's hosts, switches and links are up."""
    ovs = OpenVSwitch(Path("/run/bench"), directory)
    ovs.start()
    mininet.log.setLogLevel("critical")  # it warns of every quantum
    Mininet.inited = True  # its init() would raise sysctls of the whole machine
    start = time.perf_counter()
    net = Mininet(
        topo=_LeafSpine(topology),
        switch=partial(OVSSwitch, datapath="user"),
        link=partial(TCLink, bw=LINK_MBPS),
        controller=None,
    )
    try:
        net.start()
        return time.perf_counter() - start
    finally:
        # the namespace ends with this process, and everything in it
        ovs.stop()


def run() -> list[Row]:
    """Build each size once each way."""
    rows = []
    for leaves, spines, servers in SIZES:
        topology = create_topology(
            "leaf-spine", leaves=leaves, spines=spines, servers_per_leaf=servers
        )
        ours = isolated_in_directory(partial(build_ours, topology))
        stock = isolated_in_directory(partial(build_stock, topology))
        count = len(topology.servers)
        rows.append(Row(f"build {count} servers", f"{ours:.2f} s", f"{stock:.2f} s", stock / ours))
    return rows
