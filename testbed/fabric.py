"""A topology made real: Mininet nodes, veth links, Open vSwitch bridges and the ASIC in every port.

Links are made in one batch with both ends in their final place, then handed to Mininet, whose
objects and command line work on them as usual. Must run inside the run's namespaces (isolation).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mininet.log
from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Node, Switch
from pyroute2 import IPRoute

from controllers.labels import LabelSettings
from testbed.asic.label import LabelEngine
from testbed.asic.mmu import BufferPolicy, Mmu
from testbed.asic.scheduler import (
    PortPlan,
    apply_plan,
    attach_programs,
    change_rate,
    read_back,
    rebuild_tree,
)
from testbed.isolation import network_namespace_of
from testbed.offload import disable_offloads, enabled_offloads
from testbed.ovs import OpenVSwitch
from testbed.topology import Interface, NodeKind, Topology
from testbed.topology.base import ROCE_MTU

ETHERNET_HEADER = 14
"""Bytes."""


_LINK_GROUP = 4791


class FabricError(RuntimeError):
    """The fabric could not be built as planned."""


class FabricSwitch(Switch):  # type: ignore[misc]
    """A switch whose bridge is made elsewhere, all switches in one transaction."""

    def start(self, controllers: list[Any]) -> None:
        """Do nothing: the bridge is up already."""

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 (Mininet's name)
        """End the node's shell; interfaces die with the namespace."""
        super().stop(deleteIntfs=False)


class FabricInterface(Intf):  # type: ignore[misc]
    """An interface that exists already, in its node's namespace."""

    def __init__(self, name: str, node: Node, port: int | None, link: Link) -> None:
        super().__init__(
            name, node=node, port=port, link=link, moveIntfFn=lambda *args, **kwargs: True
        )


class FabricLink(Link):  # type: ignore[misc]
    """A link between two interfaces that exist already."""

    def __init__(
        self, node1: Node, node2: Node, *, first: Interface, second: Interface, **_: Any
    ) -> None:
        self.intf1 = FabricInterface(first.name, node1, first.port or None, self)
        self.intf2 = FabricInterface(second.name, node2, second.port or None, self)


def _gateway(interface: Interface) -> str:
    first, second, _, _ = interface.address.split(".")
    return f"{first}.{second}.255.254"


class Fabric:
    """One built fabric. ``dilation`` turns the topology's rates into wall rates.

    ``labels`` are the settings of the switches that have a hash engine; ``label_engine`` is None if
    there is none.

    Usage: ``build()``, then traffic, then ``stop()``; ``problems()`` at any time compares what the
    kernel has with what was planned.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        dilation: float,
        policy: BufferPolicy,
        directory: Path,
        logs: Path,
        labels: Mapping[str, LabelSettings] | None = None,
    ) -> None:
        mininet.log.setLogLevel("warning")
        # Mininet's own init() raises sysctls of the whole machine; a run changes nothing outside
        Mininet.inited = True
        self.topology = topology
        self.directory = directory
        self.ovs = OpenVSwitch(directory / "ovs", logs)
        self.net = Mininet(build=False, autoStaticArp=False)
        directory.mkdir(parents=True, exist_ok=True)
        self.mmu = Mmu(topology, policy, directory)
        self.label_engine = LabelEngine(topology, self.mmu, directory) if labels else None
        if self.label_engine and labels:
            self.label_engine.configure(labels, dilation)
        self._routes: dict[str, IPRoute] = {}
        self._built_links = False
        self._dilation = dilation
        self._plans = {
            i.name: PortPlan(i.ifindex, i.name, i.rate / dilation, ROCE_MTU + ETHERNET_HEADER)
            for i in topology.interfaces.values()
        }

    def build(
        self,
        controller: str = "tcp:127.0.0.1:6653",
        before_bridges: Callable[[], None] = lambda: None,
    ) -> None:
        """Build everything and compare it with the plan. Raises FabricError, OvsError, BpfError.

        ``before_bridges`` is called before the switches begin to look for their controller.
        """
        self._make_nodes()
        self._make_links()
        self._configure_servers()
        self.ovs.start()
        before_bridges()
        self.ovs.add_bridges(self.topology, controller)
        # after add_bridges: a port that joins a bridge without QoS loses its root qdisc
        self._make_ports()
        problems = self.problems()
        if problems:
            raise FabricError("; ".join(problems[:3]))

    def pid_of(self, server: str) -> int:
        """PID of a server's shell, whose namespaces are the server's."""
        return int(self.net.nameToNode[server].pid)

    def discard_queue(self, interface: str) -> None:
        """Throw away the frames that wait at an interface; the buffer program still counts them."""
        rebuild_tree(self._netlink_of(interface), self._plans[interface])

    def change_rate(self, interface: str, rate: float) -> None:
        """From now on an interface transmits at ``rate``, in emulated bit/s."""
        plan = replace(self._plans[interface], rate=rate / self._dilation)
        self._plans[interface] = plan
        change_rate(self._netlink_of(interface), plan)

    def problems(self) -> list[str]:
        """Differences between plan and kernel: qdiscs, programs, offloads. Empty when none."""
        found: list[str] = []
        for node, ip in self._each_namespace():
            found += read_back(ip, (self._plans[i.name] for i in self._interfaces_in(node)))
        for server in self.topology.servers:
            with network_namespace_of(self.pid_of(server.name)):
                found += self._offload_problems(self.topology.interfaces_of(server.name))
        found += self._offload_problems(self._interfaces_in(""))
        if self.label_engine:
            found += self.label_engine.problems()
        return found

    def skip(self, seconds: float) -> None:
        """Let the switches know of wall seconds that the emulated clock has jumped over."""
        if self.label_engine:
            self.label_engine.skip(seconds)

    def wire_end(self, interface: Interface) -> Interface:
        """The end of an interface's link where a capture sees frames as they are on the wire.

        The hash engine labels a frame as soon as it arrives: at its port, a frame from the NIC has
        a label already.
        """
        if self.label_engine and self.label_engine.labels(interface.name):
            return self.topology.interfaces[interface.peer]
        return interface

    def stop(self) -> None:
        """Take everything down, so that another fabric can be built in its place. Idempotent."""
        self.ovs.stop()
        if self._built_links:
            self._built_links = False
            # the whole group in one request; either end takes its link with it
            self._ip_batch([f"link delete group {_LINK_GROUP}"])
            # the bridges' own interfaces outlive a daemon that is terminated
            left = Path("/sys/class/net")
            names = [node.name for node in self.topology.switches] + ["ovs-netdev"]
            self._ip_batch([f"link delete {name}" for name in names if (left / name).exists()])
        for ip in self._routes.values():
            ip.close()
        self._routes.clear()
        for node in [*self.net.hosts, *self.net.switches]:
            if node.shell is not None:
                node.stop(deleteIntfs=False)
        if self.label_engine:
            self.label_engine.close()
        self.mmu.close()

    def _make_nodes(self) -> None:
        for node in self.topology.nodes.values():
            if node.kind is NodeKind.SERVER:
                self.net.addHost(node.name, cls=Host, ip=None)
            else:
                self.net.addSwitch(node.name, cls=FabricSwitch, dpid=f"{node.datapath_id:016x}")

    def _make_links(self) -> None:
        lines = []
        pairs = []
        done: set[str] = set()
        for first in self.topology.interfaces.values():
            if first.name in done:
                continue
            second = self.topology.interfaces[first.peer]
            done |= {first.name, second.name}
            pairs.append((first, second))
            lines.append(
                f"link add {self._link_end(first)} type veth peer {self._link_end(second)}"
            )
        lines += [f"link set {i.name} up group {_LINK_GROUP}" for i in self._interfaces_in("")]
        self._built_links = True
        self._ip_batch(lines)
        for first, second in pairs:
            self.net.addLink(
                self.net.nameToNode[first.node],
                self.net.nameToNode[second.node],
                cls=FabricLink,
                first=first,
                second=second,
            )

    def _link_end(self, interface: Interface) -> str:
        end = (
            f"name {interface.name} index {interface.ifindex} mtu {ROCE_MTU} "
            f"address {interface.mac} numtxqueues 1 numrxqueues 1"
        )
        if self.topology.nodes[interface.node].kind is NodeKind.SERVER:
            end += f" netns {self.pid_of(interface.node)}"
        return end

    def _configure_servers(self) -> None:
        for server in self.topology.servers:
            lines = ["link set lo up"]
            for interface in self.topology.interfaces_of(server.name):
                gateway = _gateway(interface)
                router = self.topology.nodes[interface.peer_node].router_mac
                lines += [
                    f"addr add {interface.address}/32 dev {interface.name}",
                    f"link set {interface.name} up",
                    f"neigh add {gateway} lladdr {router} dev {interface.name} nud permanent",
                ]
            lines += self._kernel_routes(server.name)
            with network_namespace_of(self.pid_of(server.name)):
                for scope in ("all", "default"):
                    switch = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
                    if switch.exists():
                        switch.write_text("1")
                self._ip_batch(lines)

    def _kernel_routes(self, server: str) -> list[str]:
        """A server's way into each network that it has a NIC on: by its first NIC there.

        For programs that use sockets; networks are several with a front end, or on rails alone.
        """
        lines = []
        covered: set[str] = set()
        for interface in self.topology.interfaces_of(server):
            reached = self.topology.prefixes_from(interface.peer_node)
            for prefix in sorted(reached - covered) if covered else ["10.0.0.0/8"]:
                lines.append(
                    f"route add {prefix} via {_gateway(interface)} dev {interface.name} onlink "
                    f"src {interface.address} mtu {ROCE_MTU}"
                )
            covered |= reached
        return lines

    def _make_ports(self) -> None:
        if self.label_engine:
            self.label_engine.attach()
        for node, ip in self._each_namespace():
            interfaces = self._interfaces_in(node)
            names = [i.name for i in interfaces]
            if node:
                with network_namespace_of(self.pid_of(node)):
                    disable_offloads(names)
            else:
                disable_offloads(names)
            for interface in interfaces:
                apply_plan(ip, self._plans[interface.name])
                attach_programs(
                    ip,
                    interface.ifindex,
                    egress=self.mmu.enqueue_program,
                    ingress=self.mmu.dequeue_program,
                )

    def _interfaces_in(self, node: str) -> list[Interface]:
        """Interfaces of a server's namespace, or of the run's own namespace ("")."""
        if node:
            return self.topology.interfaces_of(node)
        return [
            i
            for i in self.topology.interfaces.values()
            if self.topology.nodes[i.node].kind is NodeKind.SWITCH
        ]

    def _each_namespace(self) -> list[tuple[str, IPRoute]]:
        """Netlink sockets: the run's own namespace (""), then every server's."""
        if not self._routes:
            self._routes[""] = _netlink_here()
            for server in self.topology.servers:
                with network_namespace_of(self.pid_of(server.name)):
                    self._routes[server.name] = _netlink_here()
        return list(self._routes.items())

    def _netlink_of(self, interface: str) -> IPRoute:
        node = self.topology.nodes[self.topology.interfaces[interface].node]
        return self._routes[node.name if node.kind is NodeKind.SERVER else ""]

    def _offload_problems(self, interfaces: list[Interface]) -> list[str]:
        return [
            f"{interface.name}: offloads still on: {', '.join(on)}"
            for interface in interfaces
            if (on := enabled_offloads(interface.name))
        ]

    @staticmethod
    def _ip_batch(lines: list[str]) -> None:
        result = subprocess.run(
            ["ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise FabricError(f"ip: {result.stderr.strip()}")


def _netlink_here() -> IPRoute:
    ip = IPRoute()
    # pyroute2 opens its socket with the first request, and it must be opened in this namespace
    ip.link_lookup(ifname="lo")
    return ip
