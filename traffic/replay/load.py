"""Opens a trace of any known format and scales it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traffic.replay.chakra import files_by_rank, read_chakra
from traffic.replay.files import read_file
from traffic.replay.flows import flows_trace, parse_flows
from traffic.replay.msccl import msccl_trace, parse_msccl
from traffic.replay.msccl_check import verify_msccl
from traffic.replay.text_workload import is_text_workload, parse_text_workload, text_workload_trace
from traffic.replay.trace import Trace, TraceError, scaled


@dataclass(frozen=True)
class TraceOptions:
    """What a file of some format does not say itself.

    ``world_size``: flows, and text workloads without ``all_gpus``; ``gpus`` is what these get
    where nobody says it. ``size``: bytes that an MSCCL
    algorithm works on. ``model_group``: ranks of a tensor parallel group of a text workload.
    ``one_stage``: replay a text workload's one pipeline stage. ``groups``: ranks of each Chakra
    process group. ``compute_rate``: FLOP/s for Chakra nodes without duration. ``size_scale`` and
    ``time_scale`` multiply what the file says.
    """

    world_size: int | None = None
    gpus: int | None = None
    size: int | None = None
    model_group: int | None = None
    one_stage: bool = False
    groups: Mapping[str, Sequence[int]] | None = None
    compute_rate: float | None = None
    size_scale: float = 1.0
    time_scale: float = 1.0


def load_trace(path: Path, *, trace_format: str = "", options: TraceOptions | None = None) -> Trace:
    """The trace in a file, or in one file per rank, scaled.

    A Chakra trace is any of its files, their directory, or the common prefix of their names. The
    format is guessed unless it is named. Raises TraceError.
    """
    options = options or TraceOptions()
    name = trace_format or guess_format(path)
    if name not in _READERS:
        raise TraceError(f"unknown trace format {name!r}; allowed: {', '.join(trace_formats())}")
    try:
        trace = _READERS[name](path, options)
    except TraceError as error:
        if str(path) in str(error):
            raise
        raise TraceError(f"{path}: {error}") from error
    return scaled(trace, size=options.size_scale, time=options.time_scale)


def trace_formats() -> list[str]:
    """Names of all formats, sorted."""
    return sorted(_READERS)


def guess_format(path: Path) -> str:
    """The format of a file, by its name or its first word. Raises TraceError if unreadable."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if path.is_dir() or not path.exists() or suffix in (".et", ".json"):
        return "chakra"
    if suffix == ".xml":
        return "msccl"
    data = read_file(path)
    if not data.strip():
        raise TraceError(f"{path}: is empty")
    return "text" if is_text_workload(data) else "flows"


def _chakra_files(path: Path) -> list[Path]:
    """All files of the trace that a file, directory or prefix belongs to."""
    if path.is_dir():
        files = list(path.iterdir())
    else:
        prefix = path.name
        if path.exists():
            prefix = path.name.removesuffix(".gz").rsplit(".", 2)[0]
        files = [f for f in path.parent.glob("*") if f.name.startswith(prefix + ".")]
    traces = [f for f in files if Path(f.name.removesuffix(".gz")).suffix in (".et", ".json")]
    if not traces:
        raise TraceError(f"{path}: no files <prefix>.<rank>.et or .json")
    return files_by_rank(sorted(traces))


def _chakra(path: Path, options: TraceOptions) -> Trace:
    return read_chakra(
        _chakra_files(path), groups=options.groups, compute_rate=options.compute_rate
    )


def _text(path: Path, options: TraceOptions) -> Trace:
    workload = parse_text_workload(read_file(path))
    says_it = "all_gpus" in workload.parameters
    return text_workload_trace(
        workload,
        world_size=options.world_size or (None if says_it else options.gpus),
        model_group=options.model_group,
        one_stage=options.one_stage,
        source=str(path),
    )


def _msccl(path: Path, options: TraceOptions) -> Trace:
    algorithm = parse_msccl(read_file(path))
    verify_msccl(algorithm)
    if options.size is None:
        raise TraceError("an algorithm works on any number of bytes; give the size")
    return msccl_trace(algorithm, options.size, source=str(path))


def _flows(path: Path, options: TraceOptions) -> Trace:
    hosts = options.world_size or options.gpus
    if hosts is None:
        raise TraceError("a flow file does not say how many hosts there are; give the world size")
    return flows_trace(parse_flows(read_file(path), hosts=hosts), hosts=hosts, source=str(path))


_READERS: dict[str, Callable[[Path, TraceOptions], Trace]] = {
    "chakra": _chakra,
    "flows": _flows,
    "msccl": _msccl,
    "text": _text,
}
