"""The outcome of a run for programs and scripts: one line, or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.fidelity import Verdict
from testbed.results import EmptyResultError, RunResult, check_not_empty


def one_line(result: RunResult, directory: Path) -> str:
    """A result in one line, for --quiet."""
    failed = [expectation.text for expectation in result.expectations if not expectation.met]
    parts = [result.verdict.value]
    if result.verdict is Verdict.INVALID:
        worst_first = sorted(result.variants, key=lambda v: -v.fidelity.verdict.severity)
        first, *more = (f"{v.name}: {r}" for v in worst_first for r in v.fidelity.reasons)
        parts.append(first + f" (and {len(more)} more)" * bool(more))
    parts += _emptiness(result)
    if failed:
        parts.append(f"expectation failed: {'; '.join(failed)}")
    else:
        parts.append(f"{len(result.expectations)} expectations met")
    return f"{result.name}: {', '.join(parts)}; results: {directory}"


def _emptiness(result: RunResult) -> list[str]:
    """Why a result is none although the machine kept up; empty if it is one."""
    try:
        check_not_empty(result)
    except EmptyResultError as error:
        return [f"nothing was measured: {error}"]
    return []


def as_json(result: RunResult, directory: Path, status: int) -> str:
    """What a program wants to know of a run; all else is in the directory's result.json.

    Metrics are in SI units or bytes.
    """
    document: dict[str, Any] = {
        "name": result.name,
        "status": status,
        "verdict": result.verdict.value,
        "reasons": [
            *(f"{v.name}: {reason}" for v in result.variants for reason in v.fidelity.reasons),
            *_emptiness(result),
        ],
        "directory": str(directory.resolve()),
        "expectations": [expectation.model_dump() for expectation in result.expectations],
        "variants": {variant.name: dict(variant.metrics) for variant in result.variants},
        "collectives": {v.name: v.collective.model_dump() for v in result.variants if v.collective},
    }
    return json.dumps(document, indent=1)
