"""A programmed fabric with hash engines, and sockets at its NICs to send frames by hand."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.process import ControllerProcess
from controllers.program import write_program
from controllers.schemes import create_scheme
from controllers.table import FabricTables
from testbed.asic.mmu import BufferPolicy
from testbed.fabric import Fabric
from testbed.isolation import network_namespace_of
from testbed.topology import Topology
from tests.isolated import isolated
from traffic.packet_socket import PacketSocket
from traffic.packets import BTH

QUICK = 1000
"""Dilation."""

SMALL = 64
"""Bytes of payload of a frame whose size does not matter."""


class Leaves:
    """A built and programmed fabric, and sockets at its NICs."""

    def __init__(self, fabric: Fabric, scheme: Any, stack: ExitStack) -> None:
        self.fabric = fabric
        self.scheme = scheme
        self.topology = fabric.topology
        self.tables = FabricTables(self.topology, scheme.entries(self.topology))
        self.sockets = []
        for rank in self.topology.ranks:
            with network_namespace_of(fabric.pid_of(rank.server)):
                self.sockets.append(PacketSocket(rank.interfaces[0]))
            stack.callback(self.sockets[-1].close)

    def frame(
        self, flow: Flow, *, payload: int = SMALL, psn: int = 0, label: int | None = None
    ) -> bytes:
        tuples = flow.five_tuple
        frame = bytearray(self._template(tuples.source_ip, tuples.destination_ip, payload))
        frame[34:36] = tuples.source_port.to_bytes(2, "big")
        frame[47:50] = flow.destination_qp.to_bytes(3, "big")
        frame[51:54] = psn.to_bytes(3, "big")
        if label is not None:
            frame[12:12] = b"\x81\x00" + label.to_bytes(2, "big")
        return bytes(frame)

    @functools.lru_cache(maxsize=256)  # noqa: B019 (lives as long as the test's process)
    def _template(self, source_ip: str, destination_ip: str, payload: int) -> bytes:
        source = self.topology.nic(self.topology.rank_of_address(source_ip))
        ethernet = Ether(src=source.mac, dst=self.topology.nodes[source.peer_node].router_mac)
        ip = IP(src=source_ip, dst=destination_ip, tos=2)
        # scapy is too slow for every frame; without a UDP checksum its fields can be replaced
        return bytes(ethernet / ip / UDP(dport=4791, chksum=0) / BTH(opcode=4) / bytes(payload))

    def flow(self, source: int, destination: int, *, port: int = 50000, qp: int = 0x50) -> Flow:
        first, last = self.topology.nic(source), self.topology.nic(destination)
        return Flow(FiveTuple(first.address, last.address, port), qp, first.name)

    def path(self, flow: Flow) -> list[str]:
        leaf = self.topology.interfaces[flow.source_interface].peer_node
        return self.tables.path_of(flow, self.scheme.label(self.topology, leaf, flow))

    def row(self, interface: str) -> Any:
        return self.fabric.mmu.row(interface)

    def packets(self) -> Counter[str]:
        """Frames that every port has sent."""
        counts = self.fabric.mmu.ports["dequeued"]["packets"].sum(axis=1)
        return Counter(dict(zip(self.topology.interfaces, counts.tolist(), strict=True)))

    def settle(self) -> None:
        """Wait until no queue has held anything for a while, or until nothing moves any more."""
        quiet, last = 0, b""
        while quiet < 20:
            depths = self.fabric.mmu.depths()
            quiet = quiet + 1 if not depths.any() or depths.tobytes() == last else 0
            last = depths.tobytes()
            time.sleep(0.005 if not depths.any() else 0.1)


@contextmanager
def programmed(
    topology: Topology, scheme: Any, directory: Path, dilation: float, policy: BufferPolicy
) -> Iterator[Leaves]:
    program = directory / "program.json"
    write_program(program, topology, scheme.entries(topology))
    controller = ControllerProcess(program, log=directory / "controller.log")
    fabric = Fabric(
        topology,
        dilation=dilation,
        policy=policy,
        directory=Path("/run/rocelab"),
        logs=directory,
        labels=scheme.label_settings(topology),
    )
    with ExitStack() as stack:
        stack.callback(fabric.stop)
        stack.callback(controller.stop)
        controller.start()
        fabric.build(before_bridges=lambda: controller.wait_listening(20))
        controller.wait_ready(20)
        leaves = Leaves(fabric, scheme, stack)
        # the switch daemon opens its sending socket with its first frame
        leaves.sockets[0].send(leaves.frame(leaves.flow(0, len(topology.ranks) - 1)))
        leaves.settle()
        leaves.sockets[-1].receive()
        fabric.ovs.enlarge_sockets()
        fabric.mmu.reset()
        yield leaves


def in_fabric(
    function: Callable[[Leaves], Any],
    directory: Path,
    topology: Topology,
    scheme: str,
    *,
    dilation: float = QUICK,
    policy: BufferPolicy | None = None,
    **parameters: Any,
) -> Any:
    """What a function finds in a fabric with such routing; must be picklable."""

    def inside() -> Any:
        created = create_scheme(scheme, parameters, seed=7)
        with programmed(topology, created, directory, dilation, policy or BufferPolicy()) as built:
            return function(built)

    return isolated(inside)
