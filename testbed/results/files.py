"""The files of a run directory: ``result.json``, ``flows.csv``, ``queues.csv``, ``drops.csv``.

Every file is written beside its final name and renamed, so that a reader, or a run that is killed,
never leaves half a file under the final name.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from testbed.results.schema import SCHEMA_VERSION, DropRecord, RunResult, VariantResult
from testbed.results.series import QueueSamples

RESULT_FILE = "result.json"


class ResultError(Exception):
    """A result cannot be read; the message names the file and the reason."""


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, which takes its name if the block ends well."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_result(run_dir: Path, result: RunResult) -> Path:
    """Write ``result.json`` and return its path."""
    path = run_dir / RESULT_FILE
    write_text(path, result.model_dump_json() + "\n")
    return path


def read_result(path: Path) -> RunResult:
    """Read a ``result.json``, or the one in a run directory. Raises ResultError."""
    if path.is_dir():
        path = path / RESULT_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError(f"{path}: no such file; name a run directory") from None
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path}: not JSON ({error})") from error
    _check_version(path, document)
    try:
        return RunResult.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultError(f"{path}: {where}: {first['msg']}") from error


def _check_version(path: Path, document: object) -> None:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, int):
        raise ResultError(f"{path}: no schema_version; not a result of rocelab")
    if version != SCHEMA_VERSION:
        advice = "use a newer rocelab" if version > SCHEMA_VERSION else "run the scenario again"
        raise ResultError(
            f"{path}: schema_version {version}, this rocelab reads {SCHEMA_VERSION}; {advice}"
        )


_FLOW_COLUMNS = (
    "index", "source_rank", "destination_rank", "bytes", "messages", "completed_messages",
    "start", "finish", "completion_time", "goodput", "source_port", "qp_num",
    "sent_packets", "sent_bytes", "retransmitted_packets", "retransmitted_bytes",
    "delivered_packets", "delivered_bytes", "naks", "rnr_naks", "timeouts", "status",
    "queue_pairs", "received_packets", "out_of_order_packets", "path_migrations",
)  # fmt: skip


def write_flows_csv(run_dir: Path, variants: Sequence[VariantResult]) -> Path:
    """One line per flow of each variant; seconds, bytes and bit/s. The path is joined by spaces."""
    rows = (
        [variant.name, *(getattr(flow, column) for column in _FLOW_COLUMNS), " ".join(flow.path)]
        for variant in variants
        for flow in variant.flows
    )
    return _write_csv(run_dir / "flows.csv", ["variant", *_FLOW_COLUMNS, "path"], rows)


def write_queues_csv(run_dir: Path, samples: Mapping[str, QueueSamples]) -> Path:
    """Depths of every queue at full resolution, by variant: a line wherever a depth changed."""
    return _write_csv(
        run_dir / "queues.csv",
        ["variant", "interface", "time", "depth_bytes"],
        _queue_rows(samples),
    )


def _queue_rows(samples: Mapping[str, QueueSamples]) -> Iterator[Sequence[object]]:
    for variant, series in samples.items():
        for interface, depths in series.depths.items():
            if not depths.any():
                continue
            changed = np.flatnonzero(np.diff(depths, prepend=-1))
            times, values = series.times[changed].tolist(), depths[changed].tolist()
            for time, depth in zip(times, values, strict=True):
                yield variant, interface, f"{time:.9f}", depth


def write_drops_csv(run_dir: Path, drops: Mapping[str, Iterable[DropRecord]]) -> Path:
    """Every drop record, by variant."""
    columns = list(DropRecord.model_fields)
    rows = (
        [variant, *(getattr(record, column) for column in columns)]
        for variant, records in drops.items()
        for record in records
    )
    return _write_csv(run_dir / "drops.csv", ["variant", *columns], rows)


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path
