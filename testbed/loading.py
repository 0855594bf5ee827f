"""From what the command line says of a scenario to the scenario. Raises CommandError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from testbed.launching import CommandError, usage_errors
from testbed.options import ExitStatus

if TYPE_CHECKING:
    from testbed.schema import Scenario


def assignments(overrides: Sequence[str] | None, dilation: str | None) -> list[str]:
    """What --set and --dilation ask for, as FIELD=VALUE."""
    return [*(overrides or ()), *([] if dilation is None else [f"dilation={dilation}"])]


def load(
    scenario: str,
    overrides: Sequence[str] | None,
    dilation: str | None,
    capture: Sequence[str] | None = None,
) -> Scenario:
    """The scenario in a file, or of a name, with what the options change."""
    from testbed.scenario import ScenarioError, load_scenario

    with usage_errors(ScenarioError):
        return load_scenario(scenario, assignments(overrides, dilation), capture=capture or ())


def choose_variants(scenario: Scenario, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the variants that --variant asks for, by default all, in the file's order."""
    from testbed.registries import suggestion
    from testbed.scenario import DEFAULT_VARIANT

    names = [variant.name for variant in scenario.variants] or [DEFAULT_VARIANT]
    for name in wanted or []:
        if name not in names:
            hint = suggestion(name, names)
            raise CommandError(f"--variant {name}: no such variant; {hint}", ExitStatus.USAGE)
    return tuple(name for name in names if not wanted or name in wanted)
