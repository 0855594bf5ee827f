"""The report page: one self-contained HTML file, images and style inside, nothing to fetch."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from testbed.coll.table import whole_table
from testbed.report import findings, jobs, tables
from testbed.report.bandwidth_chart import bandwidth_finding, is_sweep
from testbed.report.grid import grid_lines, grid_of
from testbed.report.quantities import format_quantity, plural
from testbed.report.timeline_chart import timeline_finding
from testbed.results import RunResult

TEMPLATE = "report.html.j2"
FLOW_LIMIT = 20
PORT_LIMIT = 20

_CHARTS = {
    "bandwidth": (
        bandwidth_finding,
        "Thin dotted lines are what the pipelined alpha-beta model expects.",
    ),
    "timeline": (
        timeline_finding,
        "A band per rank. A message is under way from its posting by the sender, at both of its "
        "ends; a rank waits while it does not compute and nothing is on its way to it. Reductions "
        "take no emulated time. timeline.json has every operation, for ui.perfetto.dev.",
    ),
    "comparison": (
        findings.comparison_finding,
        "Each panel has its own scale, from 0 to the largest bar.",
    ),
    "links": (
        findings.link_finding,
        "Bytes of requests on each link that an equal-cost path of some flow leads through, by "
        "switch; a cross marks one that carried none, where there is room for it.",
    ),
    "psn": (
        findings.psn_finding,
        "Packets of one queue pair by packet sequence number. A recovery that goes back shows as "
        "a saw-tooth, one that resends only what was lost as single marks.",
    ),
    "queues": (
        findings.queue_finding,
        "Bytes waiting in the deepest queues, maximum per point. Hatched spans are idle, folded.",
    ),
    "completion": (
        findings.completion_finding,
        "Share of all flows that had completed by the time on the axis.",
    ),
}
"""By chart: the finding it shows, and how to read it."""


def render(result: RunResult, charts: Mapping[str, Path]) -> str:
    """The page, with the PNG files of ``charts`` inlined in that order. Raises OSError."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(quantity=format_quantity, plural=plural)
    by_name = {variant.name: variant for variant in result.variants}
    sweep = whole_table(result) if is_sweep(result) else []
    grid = None if sweep else grid_of(result)
    sentences = [findings.failure_finding(result)]
    sentences += [make(result) for name, (make, _) in _CHARTS.items() if _told(name, charts)]
    sentences += [findings.reordering_finding(result), findings.waiting_finding(result)]
    return environment.get_template(TEMPLATE).render(
        result=result,
        met=sum(expectation.met for expectation in result.expectations),
        tie=f"{findings.TIE:.0%}",
        findings=[*filter(None, sentences)],
        images={
            name: base64.b64encode(path.read_bytes()).decode() for name, path in charts.items()
        },
        captions={
            name: {"finding": make(result), "explanation": explanation}
            for name, (make, explanation) in _CHARTS.items()
            if name in charts
        },
        sweep="\n".join(sweep),
        comparison=tables.comparison(result),
        jobs=jobs.job_table(result),
        job_notes=jobs.job_notes(result),
        grid=grid,
        grid_lines=grid_lines(grid, tables.comparison(result), result) if grid else [],
        fabric_of=_fabric_of(result),
        variants=tables.variants(result),
        parameters=tables.what_was_run(result),
        ledgers={
            name: {
                "accounts": tables.ledger_accounts(variant),
                "failures": tables.ledger_failures(variant),
                "losses": tables.ledger_losses(variant),
            }
            for name, variant in by_name.items()
        },
        rules={name: tables.fidelity_rules(variant) for name, variant in by_name.items()},
        faults={name: tables.faults(v) for name, v in by_name.items() if v.faults},
        flows={name: tables.flows(v, limit=FLOW_LIMIT) for name, v in by_name.items()},
        ports={name: tables.ports(v, limit=PORT_LIMIT) for name, v in by_name.items()},
        environment=tables.environment(result),
    )


def _fabric_of(result: RunResult) -> str:
    """Whose fabric the page describes, where the variants' differ: that of the first."""
    chosen = [key for variant in result.variants for key in variant.overrides]
    differ = any(key.startswith(("topology", "server", "faults.slow")) for key in chosen)
    differ = differ or "faults" in chosen
    return f"{result.variants[0].name}: " if differ else ""


def _told(name: str, charts: Mapping[str, Path]) -> bool:
    """The comparison is worth a sentence even where it has no chart (a single variant)."""
    return name in charts or (name == "comparison" and "bandwidth" not in charts)
