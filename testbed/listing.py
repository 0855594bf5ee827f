"""`rocelab list`: the scenarios, and the strategies by the names that scenarios and options use."""

from __future__ import annotations

import textwrap

from controllers.planning.catalogue import CATALOGUE
from controllers.planning.flows import PATTERNS
from testbed import registries
from testbed.field_list import named_sections
from testbed.scenario import ScenarioError, load_scenario, scenario_files

COLUMNS = 80
FIRST_COLUMN = 18


def print_list() -> None:
    """Print everything that has a name."""
    files = scenario_files()
    width = max(map(len, files), default=0)
    for name, path in files.items():
        try:
            description = load_scenario(path).description.strip().splitlines()
            text = description[0] if description else ""
        except ScenarioError as error:
            text = f"cannot be run: {error}"
        print(_hanging(name, text, width))
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
    print()
    sections = ", ".join(named_sections())
    print(
        textwrap.fill(
            "`rocelab list NAME` has the fields of a topology, routing scheme or workload, or of "
            f"a section of a scenario: {sections}; `rocelab list metrics` what `expect` may use.",
            COLUMNS,
        )
    )


def _hanging(what: str, text: str, width: int = FIRST_COLUMN) -> str:
    """What something is, then a text beside it that may go on in further lines."""
    return textwrap.fill(
        text, COLUMNS, initial_indent=f"{what:<{width}} ",
        subsequent_indent=" " * (width + 1), break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
