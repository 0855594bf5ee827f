"""`rocelab list`: the scenarios, and the strategies by the names that scenarios and options use."""

from __future__ import annotations

import textwrap

from controllers.planning.catalogue import CATALOGUE
from controllers.planning.flows import PATTERNS
from testbed import registries
from testbed.scenario import ScenarioError, load_scenario, scenario_files

COLUMNS = 80
FIRST_COLUMN = 18


def print_list() -> None:
    """Print everything that has a name."""
    for name, path in scenario_files().items():
        try:
            description = load_scenario(path).description.strip().splitlines()
            print(f"{name:<{FIRST_COLUMN}} {description[0] if description else ''}")
        except ScenarioError as error:
            print(f"{name:<{FIRST_COLUMN}} cannot be run: {error}")
    print()
    for what, names in (
        ("topologies", registries.topology_parameters()),
        ("routing schemes", registries.scheme_parameters()),
        ("workloads", registries.workload_parameters()),
        ("servers", registries.server_names()),
        ("placements", registries.placement_names()),
        ("recovery of rc", registries.recovery_names("rc")),
        ("full-size fabrics", CATALOGUE),
        ("planned patterns", PATTERNS),
    ):
        print(_hanging(what, ", ".join(sorted(names))))


def _hanging(what: str, text: str) -> str:
    """What something is, then a text beside it that may go on in further lines."""
    return textwrap.fill(
        text, COLUMNS, initial_indent=f"{what:<{FIRST_COLUMN}} ",
        subsequent_indent=" " * (FIRST_COLUMN + 1), break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
