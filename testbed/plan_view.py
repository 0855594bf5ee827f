"""What a scenario would do, on the terminal, computed on paper: no root, nothing is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from testbed import registries
from testbed.calibration import choose_dilation, measure_unit, nic_rate
from testbed.gpu_servers import local_links
from testbed.plan_faults import COLUMNS, PlannedStarts, Start, fault_rows, loss_notes
from testbed.plan_jobs import print_jobs
from testbed.report.quantities import format_quantity, plural, three_digits
from testbed.scenario import Scenario, build_topology, plan_traffic, resolve_variants
from testbed.topology import Topology
from testbed.topology.layout import networks_without_gpus
from testbed.topology.wiring import oversubscription
from traffic.bounds import lower_bound
from traffic.collectives.communicators import Communicator
from traffic.locations import gpus_per_server
from traffic.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 16
"""Rows of a table; a fabric of 1024 ranks would flood the terminal."""


def print_plan(
    scenario: Scenario, console: Console, variants: Container[str] | None = None
) -> None:
    """Print the plan of these variants, by default all; equal plans once. Raises ScenarioError."""
    console.print(f"{scenario.name}  {_first_line(scenario.description)}", markup=False)
    seen: dict[tuple[str, str], str] = {}
    for name, variant in resolve_variants(scenario):
        if variants is not None and name not in variants:
            continue
        topology = build_topology(variant)
        plan = plan_traffic(variant, topology)
        routing = variant.routing.model_dump_json()
        sections = variant.topology, variant.server, variant.placement
        fabric = "".join("" if part is None else part.model_dump_json() for part in sections)
        key = (plan.plan_hash(), routing + fabric + variant.faults.model_dump_json())
        if key in seen:
            console.print(f"\nvariant {name}: the same fabric, paths and traffic as {seen[key]}")
            continue
        seen[key] = name
        console.print(f"\nvariant {name}", style="bold")
        starts = PlannedStarts(variant, topology, plan)
        _print_topology(topology, console)
        print_jobs(variant, topology, plan, console, rows=ROWS // 2)
        _print_faults(variant, starts, console)
        _print_traffic(variant, topology, starts, console)
        _print_figures(variant, topology, plan, console)


def _print_topology(topology: Topology, console: Console) -> None:
    tiers: dict[int, int] = {}
    for switch in topology.switches:
        tiers[switch.tier] = tiers.get(switch.tier, 0) + 1
    switches = " + ".join(str(count) for _, count in sorted(tiers.items()))
    console.print(
        f"{topology.name}: {switches} switches, {len(topology.servers)} servers, "
        f"{len(topology.ranks)} ranks, {len(topology.interfaces) // 2} links"
    )
    front_end = networks_without_gpus(topology)
    for tier, name in ((1, "leaf"), (2, "spine")):
        ratio = oversubscription(topology, tier, apart_from=front_end)
        if ratio is not None:
            console.print(f"capacity of a {name} down over up: {three_digits(ratio)}")
    _print_ranks(topology, console)


def _print_ranks(topology: Topology, console: Console) -> None:
    from rich.table import Table

    several_planes = len({switch.plane for switch in topology.switches}) > 1
    several_roles = len({rank.role for rank in topology.ranks}) > 1
    extra = ["plane"] * several_planes + ["role"] * several_roles
    table = Table()
    for column in ("rank", "server", "NIC", "address", "rate", "leaf", *extra):
        table.add_column(column)
    for rank in topology.ranks[:ROWS]:
        ports = topology.nic_ports(rank.rank)
        rate = format_quantity(ports[0].rate, "bit/s")
        cells = [
            str(rank.rank),
            rank.server,
            "\n".join(port.name for port in ports),
            ports[0].address,
            rate if len(ports) == 1 else f"{len(ports)} × {rate}",
            "\n".join(port.peer_node for port in ports),
        ]
        if several_planes:
            planes = (topology.nodes[port.peer_node].plane for port in ports)
            cells.append("\n".join(str(plane) for plane in planes))
        table.add_row(*cells, *([rank.role.value] * several_roles))
    console.print(table)
    roles = Counter(rank.role for rank in topology.ranks[ROWS:])
    others = ", ".join(f"{count} {role.value}" for role, count in roles.items())
    what = f"ranks ({others})" if several_roles else "ranks"
    _print_rest(len(topology.ranks), what, console)


def _print_faults(scenario: Scenario, starts: PlannedStarts, console: Console) -> None:
    from rich.table import Table

    rows = fault_rows(starts.timeline, scenario.faults)
    if rows:
        table = Table()
        for column in COLUMNS:
            table.add_column(column, overflow="fold")
        for row in rows[:ROWS]:
            table.add_row(*row)
        console.print(table)
        _print_rest(len(rows), "faults", console)
    for note in loss_notes(scenario.faults):
        console.print(note)


def _print_traffic(
    scenario: Scenario, topology: Topology, starts: PlannedStarts, console: Console
) -> None:
    from rich.table import Table

    table = Table()
    for column in ("flow", "from", "to", "bytes", "start", "port", "switches"):
        table.add_column(column, overflow="fold")
    plan = starts.plan
    for flow in plan.flows[:ROWS]:
        # the scheme may have chosen other source ports than the plan had
        connection = plan.connections[flow.connection]
        table.add_row(
            str(flow.index),
            str(connection.source_rank),
            str(connection.destination_rank),
            format_quantity(flow.payload_bytes, "B"),
            format_quantity(flow.start, "s") if flow.start else "0",
            str(connection.source_port),
            _in_words(starts.of(flow), topology),
        )
    console.print(table)
    _print_rest(len(plan.flows), "flows", console)


def _in_words(start: Start, topology: Topology) -> str:
    """The switches of a flow's first way, how many ways there are, and which link loses packets."""
    if not start.ways:
        return "no way is left"
    switches = " ".join(topology.interfaces[name].node for name in start.ways[0][1:])
    others = len(start.ways) - 1
    ways = f" or {plural(others, 'other way')}" if others else ""
    down = f"; {', '.join(start.cut)} {'is' if len(start.cut) == 1 else 'are'} down"
    known = ", ".join(dict.fromkeys(topology.interfaces[name].node for name in start.noticed))
    down += f", as {known} {'knows' if ',' not in known else 'know'}" if known else ""
    return switches + ways + (down if start.cut else "")


def _print_figures(scenario: Scenario, topology: Topology, plan: Plan, console: Console) -> None:
    hops = (topology.switch_hops(c.source_rank, c.destination_rank) for c in plan.connections)
    latency = topology.one_way_latency(min(hops, default=1))
    mtu = scenario.nic.path_mtu
    workload = registries.workload(plan.workload)
    job = workload.job(plan)
    for note in (*job.notes, job.verified) if job is not None else ():
        if note:
            console.print(note, markup=False)
    for note in dict.fromkeys(_how(c, plan.servers) for c in workload.communicators(plan)):
        console.print(note, markup=False)
    # computations are skipped: they take emulated time only
    bound, wall_bound = (
        lower_bound(
            plan,
            link_rate=max(nic_rate(topology, rank.rank) for rank in topology.ranks),
            path_mtu=mtu,
            latency=latency,
            compute=compute,
            nvlink=local_links(scenario.server),
        )
        for compute in (True, False)
    )
    console.print(
        f"payload {format_quantity(plan.payload_bytes, 'B')}, plan {plan.plan_hash()[:16]}"
    )
    console.print(f"no network can finish before {format_quantity(bound, 's')}")
    if scenario.dilation == "auto":
        dilation = choose_dilation(plan, topology, path_mtu=mtu, unit=measure_unit())
        chosen = f"dilation auto, about {dilation:g} on this machine"
    else:
        dilation = scenario.dilation
        chosen = f"dilation {dilation:g}"
    console.print(f"{chosen}: at least {wall_bound * dilation:.2g} s of wall time")


def _how(communicator: Communicator, server_of: Sequence[str]) -> str:
    """What a communicator does, by which algorithm, and where it uses NVLink."""
    request = communicator.schedule.request
    servers = "all over the network"
    if request.gpus_per_server > 1:
        servers = f"{request.gpus_per_server} of each server over NVLink"
        sharing = gpus_per_server([server_of[rank] for rank in communicator.ranks])
        if sharing % request.gpus_per_server:
            servers = (
                f"{request.gpus_per_server} in a row as if of one server, "
                "over NVLink where they are"
            )
    return (
        f"{request.collective} by {communicator.schedule.algorithm}: {request.ranks} ranks, "
        f"{servers}"
    )


def _print_rest(count: int, what: str, console: Console) -> None:
    if count > ROWS:
        console.print(f"… and {count - ROWS} more {what}")


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
