"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of one.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, e.g. nic.timeout=10."),
]
DilationOption = Annotated[
    str | None,
    typer.Option(
        "--dilation", metavar="auto|N", help="Wall seconds per emulated second; auto measures."
    ),
]
VariantOption = Annotated[
    list[str] | None, typer.Option("--variant", metavar="NAME", help="Only this variant.")
]
PcapOption = Annotated[
    list[str] | None,
    typer.Option("--pcap", metavar="INTERFACE", help="Record it, e.g. leaf1-spine1."),
]
OutputOption = Annotated[Path, typer.Option("--output", metavar="DIRECTORY", help="For results.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, one line at the end.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
