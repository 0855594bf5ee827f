"""All benchmarks: ``python -m tests.bench [NAME ...]``, as root.

Status 0 when all ran and met their targets, 1 when one did not, 2 for wrong usage, 4 without root.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from tests.bench import build, endpoint, fabric, planning
from tests.bench.table import Row, header
from tests.isolated import isolated


def _endpoint() -> list[Row]:
    return isolated(endpoint.run)


BENCHMARKS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "endpoint": ("scapy", _endpoint),
    "fabric": ("blaster", fabric.run),
    "build": ("stock Mininet", build.run),
    "planning": ("limit", planning.run),
}
"""Name -> whom we are compared with, and the measurement."""


def main() -> int:
    """Run the named benchmarks (all by default), print their table, return the status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(BENCHMARKS)}")
    if os.geteuid() != 0:
        print("the benchmarks build network namespaces: run them as root", file=sys.stderr)
        return 4
    start = time.monotonic()
    met = True
    for name in names:
        other, run = BENCHMARKS[name]
        print(header(other), flush=True)
        for row in run():
            print(row.text(), flush=True)
            met &= row.met
    print(f"took {time.monotonic() - start:.0f} s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
