"""Reads MSCCL algorithms: XML that says, per GPU and threadblock, which chunk goes where.

The format is that of microsoft/msccl-tools (msccl/language/ir.py) and of the MSCCL and RCCL
runtimes. Threadblocks run side by side, the steps of one in order; a step may wait for a step of
another threadblock of its GPU. A document type, and with it any entity, is refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from xml.parsers import expat

from traffic.replay.check import check
from traffic.replay.files import unpacked
from traffic.replay.trace import NodeKind, Trace, TraceError, TraceNode

CHUNK_LIMIT = 4096
"""Chunks of a buffer; the runtime's own limits are far below."""


class StepType(StrEnum):
    """What a step does; MSCCL's own abbreviations."""

    SEND = "s"
    RECEIVE = "r"
    RECEIVE_COPY_SEND = "rcs"
    RECEIVE_REDUCE_SEND = "rrs"
    RECEIVE_REDUCE_COPY = "rrc"
    RECEIVE_REDUCE_COPY_SEND = "rrcs"
    COPY = "cpy"
    REDUCE = "re"
    NOP = "nop"

    @property
    def receives(self) -> bool:
        """It takes a message from the threadblock's ``recv`` peer."""
        return self.value.startswith("r") and self is not StepType.REDUCE

    @property
    def sends(self) -> bool:
        """It gives a message to the threadblock's ``send`` peer."""
        return self.value.endswith("s")

    @property
    def reduces(self) -> bool:
        """It combines two operands."""
        return self.value.startswith("rr") or self is StepType.REDUCE

    @property
    def stores(self) -> bool:
        """It writes its destination."""
        return self not in (StepType.SEND, StepType.RECEIVE_REDUCE_SEND, StepType.NOP)

    @property
    def loads(self) -> bool:
        """It reads its source."""
        return self in (StepType.SEND, StepType.COPY) or self.reduces


@dataclass(frozen=True, slots=True)
class Place:
    """``count`` chunks of a buffer: i input, o output, s scratch."""

    buffer: str
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ``waits_for`` is (threadblock, step) of the same GPU."""

    type: StepType
    source: Place
    destination: Place
    count: int
    waits_for: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Threadblock:
    """Steps in order; ``send`` and ``receive`` are peers, -1 for none."""

    send: int
    receive: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """All threadblocks of a GPU and its buffers' sizes in chunks."""

    chunks: dict[str, int]
    threadblocks: tuple[Threadblock, ...]


@dataclass(frozen=True, slots=True)
class MscclAlgorithm:
    """An algorithm. ``chunks_per_loop`` is what the larger of input and output is cut into."""

    name: str
    collective: str
    protocol: str
    in_place: bool
    chunks_per_loop: int
    gpus: tuple[GpuProgram, ...]


def parse_msccl(data: bytes) -> MscclAlgorithm:
    """The algorithm in a file, possibly gzipped. Raises TraceError that names the line."""
    reader = _Reader()
    reader.parse(unpacked(data))
    return reader.algorithm()


def msccl_trace(algorithm: MscclAlgorithm, size: int, *, source: str = "") -> Trace:
    """The messages of an algorithm on ``size`` bytes (the larger of input and output of a rank).

    Reductions and copies take no time; a step without a message is an empty COMPUTE. Raises
    TraceError if the bytes cannot be cut into equal chunks, or the algorithm cannot end.
    """
    if size <= 0 or size % algorithm.chunks_per_loop:
        raise TraceError(
            f"algorithm {algorithm.name}: {size} bytes; allowed: multiples of "
            f"{algorithm.chunks_per_loop} (chunks)"
        )
    chunk = size // algorithm.chunks_per_loop
    channels = 1 + max((t.channel for gpu in algorithm.gpus for t in gpu.threadblocks), default=0)
    ranks = tuple(tuple(_gpu_nodes(gpu, chunk, channels)) for gpu in algorithm.gpus)
    trace = Trace(source or algorithm.name, ranks)
    check(trace)
    return trace


def _gpu_nodes(gpu: GpuProgram, chunk: int, channels: int) -> list[TraceNode]:
    """Nodes of all threadblocks. The k-th message on a channel has tag k * channels + channel."""
    nodes: list[TraceNode] = []
    lengths = [len(threadblock.steps) for threadblock in gpu.threadblocks]
    first = [0, *itertools.accumulate(lengths)]
    sent: Counter[tuple[NodeKind, int, int]] = Counter()

    def last_node(threadblock: int, step: int) -> int:
        kinds = _kinds(gpu.threadblocks[threadblock].steps[step].type)
        return 2 * (first[threadblock] + step) + len(kinds) - 1

    for t, threadblock in enumerate(gpu.threadblocks):
        for s, step in enumerate(threadblock.steps):
            after = [] if s == 0 else [last_node(t, s - 1)]
            if step.waits_for is not None:
                after.append(last_node(*step.waits_for))
            for part, kind in enumerate(_kinds(step.type)):
                wire: dict[str, Any] = {}
                if kind is not NodeKind.COMPUTE:
                    peer = threadblock.send if kind is NodeKind.SEND else threadblock.receive
                    turn = sent[kind, peer, threadblock.channel]
                    sent[kind, peer, threadblock.channel] += 1
                    wire = {
                        "peer": peer,
                        "size": step.count * chunk,
                        "tag": turn * channels + threadblock.channel,
                    }
                node = TraceNode(
                    node_id=2 * (first[t] + s) + part,
                    kind=kind,
                    name=f"tb {t} step {s} {step.type}",
                    dependencies=tuple(dict.fromkeys(after)),
                    **wire,
                )
                nodes.append(node)
                after = [node.node_id]
    return nodes


def _kinds(step: StepType) -> tuple[NodeKind, ...]:
    """The nodes that a step becomes: what it receives and sends, else a COMPUTE."""
    kinds = ((NodeKind.RECEIVE, step.receives), (NodeKind.SEND, step.sends))
    return tuple(kind for kind, wanted in kinds if wanted) or (NodeKind.COMPUTE,)


@dataclass
class _Element:
    """An element being read: its attributes, its line, its children."""

    attributes: dict[str, str]
    line: int
    children: list[Any] = field(default_factory=list)


_NESTING = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}
"""Which element lies in which."""


class _Reader:
    """Collects elements from expat's events and turns them into an algorithm."""

    def __init__(self) -> None:
        self._stack: list[tuple[str, _Element]] = []
        self._root: _Element | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def parse(self, data: bytes) -> None:
        """Read a document. Raises TraceError."""
        try:
            self._parser.Parse(data, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            if isinstance(error, TraceError):
                raise
            raise TraceError(f"XML: {error}") from error

    def algorithm(self) -> MscclAlgorithm:
        """What was read. Raises TraceError."""
        root = self._root
        if root is None:
            raise TraceError("XML: no element algo")
        gpus = _by_id(root, "gpu", _gpu)
        count = _number(root, "algo", "ngpus")
        if len(gpus) != count:
            raise TraceError(f"line {root.line}, algo: ngpus {count}, but {len(gpus)} elements gpu")
        chunks = root.attributes.get("nchunksperloop")
        largest = max((max(g.chunks["i"], g.chunks["o"]) for g in gpus), default=0)
        per_loop = largest if chunks is None else _number(root, "algo", "nchunksperloop")
        if not 1 <= per_loop <= CHUNK_LIMIT:
            raise TraceError(
                f"line {root.line}, algo: {per_loop} chunks; allowed: 1 to {CHUNK_LIMIT}"
            )
        algorithm = MscclAlgorithm(
            name=root.attributes.get("name", ""),
            collective=_text(root, "algo", "coll"),
            protocol=root.attributes.get("proto", "Simple"),
            in_place=_number(root, "algo", "inplace", 0) != 0,
            chunks_per_loop=per_loop,
            gpus=tuple(gpus),
        )
        _check(algorithm)
        return algorithm

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        line = self._parser.CurrentLineNumber
        parent = self._stack[-1][0] if self._stack else ""
        if _NESTING.get(name) != parent:
            raise TraceError(f"line {line}: element {name} within {parent or 'the document'}")
        element = _Element(attributes, line)
        if self._stack:
            self._stack[-1][1].children.append(element)
        else:
            self._root = element
        self._stack.append((name, element))

    def _end(self, name: str) -> None:
        self._stack.pop()

    def _refuse_doctype(self, name: str, *_: object) -> None:
        raise TraceError(f"line {self._parser.CurrentLineNumber}: a DOCTYPE is not allowed")


def _gpu(element: _Element) -> GpuProgram:
    chunks = {
        buffer: _number(element, "gpu", f"{buffer}_chunks", limit=CHUNK_LIMIT) for buffer in "ios"
    }
    return GpuProgram(chunks, tuple(_by_id(element, "tb", _threadblock)))


def _threadblock(element: _Element) -> Threadblock:
    steps = []
    for index, child in enumerate(element.children):
        if _number(child, "step", "s") != index:
            raise TraceError(
                f"line {child.line}, step: s {child.attributes['s']!r}; expected {index}"
            )
        steps.append(_step(child))
    return Threadblock(
        send=_number(element, "tb", "send", least=-1),
        receive=_number(element, "tb", "recv", least=-1),
        channel=_number(element, "tb", "chan"),
        steps=tuple(steps),
    )


def _step(element: _Element) -> Step:
    kind = _text(element, "step", "type")
    if kind not in [step.value for step in StepType]:
        raise TraceError(
            f"line {element.line}, step: type {kind!r}; allowed: {', '.join(StepType)}"
        )
    depends = _number(element, "step", "depid", -1, least=-1)
    on_step = _number(element, "step", "deps", -1, least=-1)
    if (depends < 0) != (on_step < 0):
        raise TraceError(f"line {element.line}, step: depid {depends}, but deps {on_step}")

    def place(prefix: str) -> Place:
        buffer = _text(element, "step", f"{prefix}buf")
        if buffer not in ("i", "o", "s"):
            raise TraceError(f"line {element.line}, step: {prefix}buf {buffer!r}; allowed: i, o, s")
        return Place(buffer, _number(element, "step", f"{prefix}off", least=-1))

    step_type = StepType(kind)
    nowhere = Place("i", -1)
    return Step(
        type=step_type,
        source=nowhere if step_type is StepType.NOP else place("src"),
        destination=nowhere if step_type is StepType.NOP else place("dst"),
        count=_number(element, "step", "cnt", 1, least=0 if step_type is StepType.NOP else 1),
        waits_for=None if depends < 0 else (depends, on_step),
    )


def _by_id(element: _Element, name: str, make: Callable[[_Element], Any]) -> list[Any]:
    """The children in the order of their ids, which have to be 0, 1, 2, ..."""
    found: dict[int, _Element] = {}
    for child in element.children:
        number = _number(child, name, "id")
        if number in found or number >= len(element.children):
            raise TraceError(
                f"line {child.line}, {name}: id {number}; expected each of "
                f"0 to {len(element.children) - 1} once"
            )
        found[number] = child
    return [make(found[number]) for number in range(len(found))]


def _text(element: _Element, name: str, attribute: str) -> str:
    if attribute not in element.attributes:
        raise TraceError(f"line {element.line}, {name}: no attribute {attribute}")
    return element.attributes[attribute]


def _number(
    element: _Element,
    name: str,
    attribute: str,
    default: int | None = None,
    *,
    least: int = 0,
    limit: int = 1_000_000,
) -> int:
    if default is not None and attribute not in element.attributes:
        return default
    text = _text(element, name, attribute)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 8):
        raise TraceError(f"line {element.line}, {name}: {attribute} {text!r} is no whole number")
    value = int(text)
    if not least <= value <= limit:
        raise TraceError(
            f"line {element.line}, {name}: {attribute} {value}; allowed: {least} to {limit}"
        )
    return value


def _check(algorithm: MscclAlgorithm) -> None:
    """Peers, chunks and dependencies exist. Raises TraceError."""
    for g, gpu in enumerate(algorithm.gpus):
        _check_connections(g, gpu)
        for t, threadblock in enumerate(gpu.threadblocks):
            for peer in (threadblock.send, threadblock.receive):
                if peer >= len(algorithm.gpus) or peer == g:
                    raise TraceError(f"gpu {g}, tb {t}: peer {peer}; allowed: another gpu, or -1")
            for s, step in enumerate(threadblock.steps):
                _check_step(f"gpu {g}, tb {t}, step {s} {step.type}", gpu, threadblock, step)


def _check_connections(g: int, gpu: GpuProgram) -> None:
    """A channel's connection to a peer belongs to one threadblock, else the order is open."""
    for end in ("send", "receive"):
        owners: dict[tuple[int, int], int] = {}
        for t, threadblock in enumerate(gpu.threadblocks):
            peer: int = getattr(threadblock, end)
            owner = owners.setdefault((peer, threadblock.channel), t)
            if peer >= 0 and owner != t:
                raise TraceError(
                    f"gpu {g}, tb {t}: {end} peer {peer} on channel {threadblock.channel} "
                    f"belongs to tb {owner}"
                )


def _check_step(where: str, gpu: GpuProgram, threadblock: Threadblock, step: Step) -> None:
    if step.type.sends and threadblock.send < 0:
        raise TraceError(f"{where}: the threadblock has no peer to send to")
    if step.type.receives and threadblock.receive < 0:
        raise TraceError(f"{where}: the threadblock has no peer to receive from")
    if step.waits_for is not None:
        other, on_step = step.waits_for
        if other >= len(gpu.threadblocks) or on_step >= len(gpu.threadblocks[other].steps):
            raise TraceError(f"{where}: waits for step {on_step} of tb {other}, which is not there")
    for used, place in ((step.type.loads, step.source), (step.type.stores, step.destination)):
        room = gpu.chunks[place.buffer]
        if used and not 0 <= place.offset <= room - step.count:
            raise TraceError(
                f"{where}: chunks {place.offset} to {place.offset + step.count - 1} of buffer "
                f"{place.buffer}, which has {room}"
            )
