"""The part of `rocelab plan` about jobs: where ranks run, what they know, which NIC they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from testbed.calibration import nic_rate
from testbed.gpu_servers import server_model
from testbed.placing import PlacedJob, placed_jobs
from testbed.report.quantities import format_quantity, plural
from testbed.scenario import Scenario, build_topology
from testbed.topology import Topology
from traffic.plan import Plan
from traffic.servers import ServerModel

if TYPE_CHECKING:
    from rich.console import Console


def print_jobs(
    scenario: Scenario, topology: Topology, plan: Plan, console: Console, *, rows: int
) -> None:
    """Print every job, and its first ranks if the scenario says anything about servers or jobs."""
    jobs = placed_jobs(scenario.placement, topology, plan)
    model = None if scenario.server is None else server_model(scenario.server)
    if model is not None:
        _print_server(model, console)
    is_default = scenario.placement == type(scenario.placement)()
    # what the links would carry if nothing in the servers were slower
    built = build_topology(scenario.model_copy(update={"server": None}))
    shares = [nic_rate(topology, gpu) / nic_rate(built, gpu) for gpu in range(len(built.ranks))]
    for job in jobs:
        _print_job(scenario.placement.strategy, job, console)
        if model is not None or not is_default:
            _print_ranks(job, model, topology, shares, console, rows // len(jobs) or 1)


def _print_server(model: ServerModel, console: Console) -> None:
    gpus, nics = (
        f"{len(devices)} {noun}{'s' * (len(devices) > 1)}"
        for devices, noun in ((model.gpus, "GPU"), (model.nics, "NIC"))
    )
    links = "NVSwitch" if model.has_nvswitch else "NVLink"
    fastest = max((model.nvlink_total(gpu) for gpu in range(len(model.gpus))), default=0.0)
    inside = (
        f"{links}, {format_quantity(fastest / 8, 'B')}/s per GPU"
        if fastest
        else f"PCIe without NVLink, {format_quantity(model.pcie_rate / 8, 'B')}/s per GPU"
    )
    console.print(f"server {model.name}: {gpus} and {nics}, {inside}", markup=False)
    for nic, device in enumerate(model.nics):
        sharing = model.gpus_of_nic(nic)
        if len(sharing) > 1:
            names = ", ".join(model.gpus[gpu].name for gpu in sharing)
            console.print(f"{names} share {device.name}: equal parts of its rate", markup=False)


def _print_job(strategy: str, job: PlacedJob, console: Console) -> None:
    servers = {environment.server for environment in job.environments}
    inside = sorted({environment.local_world_size for environment in job.environments})
    local = str(inside[0]) if len(inside) == 1 else f"{inside[0]} to {inside[-1]}"
    text = (
        f"{job.name}, {strategy}: WORLD_SIZE {len(job.gpus)}, LOCAL_WORLD_SIZE {local}, "
        f"{plural(len(servers), 'server')}, {plural(job.groups, 'group')}"
    )
    if job.groups > 1 and job.traffic_bytes:
        crossing, total = (
            format_quantity(size, "B") for size in (job.crossing_bytes, job.traffic_bytes)
        )
        text += f"; {crossing} of {total} cross groups"
    console.print(text, markup=False)


def _print_ranks(
    job: PlacedJob,
    model: ServerModel | None,
    topology: Topology,
    shares: Sequence[float],
    console: Console,
    rows: int,
) -> None:
    from rich.table import Table

    table = Table()
    network = ("NIC", "path", "rate", "of link") if model is not None else ()
    for column in ("RANK", "LOCAL_RANK", "GPU", "server", *network):
        table.add_column(column)
    for gpu, environment in list(zip(job.gpus, job.environments, strict=True))[:rows]:
        place = topology.ranks[gpu].local_rank
        cells = [
            str(environment.rank),
            str(environment.local_rank),
            f"{place} (rank {gpu})" if gpu != environment.rank else str(place),
            environment.server,
        ]
        if model is not None:
            cells += _network_cells(model, place, nic_rate(topology, gpu), shares[gpu])
        table.add_row(*cells)
    console.print(table)
    if len(job.gpus) > rows:
        console.print(f"… and {len(job.gpus) - rows} more ranks of {job.name}", markup=False)


def _network_cells(model: ServerModel, place: int, rate: float, share: float) -> list[str]:
    """The NIC of a GPU, its distance, and how much of the link the GPU can use."""
    nic = model.nic_of_gpu[place]
    assert nic is not None
    return [
        model.nics[nic].name,
        model.nic_distances[place][nic].name,
        format_quantity(rate, "bit/s"),
        format_quantity(share, "share"),
    ]
