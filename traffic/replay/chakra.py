"""Reads Chakra execution traces (MLCommons): ``.et`` files, gzipped or not, and their JSON form.

One file per rank. An ``.et`` file is a GlobalMetadata and then Node messages, each behind its
length (schema/protobuf/et_def.proto of mlcommons/chakra, 0.0.4). Zero values are absent from it:
no ``comm_type`` is ALL_REDUCE, no ``comm_dst`` is rank 0. The JSON form has the same nodes under
``workload_graph`` (src/feeder/JSONNode.cpp). Times are microseconds. The size of a collective is
that of a rank's input, as ASTRA-sim reads it (an all-gather's result is larger); the schema knows
no root, the first rank of the group counts as one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traffic.collectives.request import Collective
from traffic.replay import protobuf
from traffic.replay.check import check
from traffic.replay.files import decoded, read_file, unpacked
from traffic.replay.trace import (
    WORLD,
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
)

MICROSECOND = 1e-6

_NODE_TYPES = {
    1: "METADATA_NODE",
    2: "MEM_LOAD_NODE",
    3: "MEM_STORE_NODE",
    4: "COMP_NODE",
    5: "COMM_SEND_NODE",
    6: "COMM_RECV_NODE",
    7: "COMM_COLL_NODE",
}
_METADATA, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 1, 4, 5, 6, 7

_COLLECTIVES = {
    0: Collective.ALL_REDUCE,
    1: Collective.REDUCE,
    2: Collective.ALL_GATHER,
    3: Collective.GATHER,
    4: Collective.SCATTER,
    5: Collective.BROADCAST,
    6: Collective.ALL_TO_ALL,
    7: Collective.REDUCE_SCATTER,
    8: Collective.REDUCE_SCATTER,  # REDUCE_SCATTER_BLOCK: equal blocks, as all of ours
    9: Collective.BARRIER,
}

_Attribute = int | float | str | bytes
_ATTRIBUTE_VALUES: dict[int, tuple[int, Callable[[Any], _Attribute]]] = {
    3: (protobuf.FIXED64, protobuf.double),
    5: (protobuf.FIXED32, protobuf.single),
    7: (protobuf.VARINT, protobuf.signed),
    9: (protobuf.VARINT, protobuf.signed),
    11: (protobuf.VARINT, int),
    13: (protobuf.VARINT, int),
    15: (protobuf.VARINT, protobuf.zigzag),
    17: (protobuf.VARINT, protobuf.zigzag),
    19: (protobuf.FIXED32, int),
    21: (protobuf.FIXED64, int),
    23: (protobuf.FIXED32, lambda bits: bits - 2**32 if bits >= 2**31 else bits),
    25: (protobuf.FIXED64, protobuf.signed),
    27: (protobuf.VARINT, int),
    29: (protobuf.LENGTH, lambda text: text.decode("utf-8", "replace")),
    31: (protobuf.LENGTH, bytes),
}
"""AttributeProto: field number -> wire type and what makes a value of it; lists are not needed."""

_NODE_FIELDS = {
    1: protobuf.VARINT,
    2: protobuf.LENGTH,
    3: protobuf.VARINT,
    6: protobuf.VARINT,
    7: protobuf.VARINT,
    8: protobuf.LENGTH,
    9: protobuf.LENGTH,
    10: protobuf.LENGTH,
    11: protobuf.LENGTH,
}
_DEPENDENCY_FIELDS = (4, 5)


@dataclass
class _Raw:
    """A node as either form gives it."""

    node_id: int = 0
    name: str = ""
    node_type: int = 0
    duration_micros: float = 0.0
    dependencies: list[int] = field(default_factory=list)
    attributes: dict[str, _Attribute] = field(default_factory=dict)


def read_chakra(
    paths: Sequence[Path],
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    compute_rate: float | None = None,
) -> Trace:
    """The trace in the files of rank 0, 1, ...; other arguments as ``chakra_trace``."""
    return chakra_trace(
        [read_file(path) for path in paths],
        groups=groups,
        compute_rate=compute_rate,
        source=str(paths[0].parent) if paths else "chakra",
    )


def chakra_trace(
    files: Sequence[bytes],
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    compute_rate: float | None = None,
    source: str = "chakra",
) -> Trace:
    """The trace of all ranks; ``files[r]`` is what rank r's file holds, ``.et`` or JSON.

    ``groups`` gives the ranks of each ``pg_name``; without it a group is the ranks whose trace
    names it. ``compute_rate`` (FLOP/s) turns ``num_ops`` into time where a node has no duration.
    Raises TraceError for what is missing, damaged or cannot be replayed.
    """
    if not files:
        raise TraceError(f"{source}: no files; one for each rank")
    ranks = []
    for rank, data in enumerate(files):
        try:
            raw = _raw_nodes(unpacked(data))
            nodes = [_node(node, rank, compute_rate) for node in raw]
        except TraceError as error:
            raise TraceError(f"{source}: rank {rank}, {error}") from error
        ranks.append(tuple(nodes))
    trace = Trace(source, tuple(ranks), _groups(ranks, groups))
    check(trace)
    return trace


def _groups(
    ranks: Sequence[Sequence[TraceNode]], given: Mapping[str, Sequence[int]] | None
) -> dict[str, tuple[int, ...]]:
    if given is not None:
        return {name: tuple(members) for name, members in given.items()}
    found: dict[str, list[int]] = {}
    for rank, nodes in enumerate(ranks):
        for name in dict.fromkeys(n.group for n in nodes if n.kind is NodeKind.COLLECTIVE):
            found.setdefault(name, []).append(rank)
    return {name: tuple(members) for name, members in found.items() if name != WORLD}


def _raw_nodes(data: bytes) -> list[_Raw]:
    if data.lstrip(b" \t\r\n\xef\xbb\xbf")[:1] == b"{":
        return _json_nodes(data)
    nodes: list[_Raw] = []
    for index, message in enumerate(protobuf.delimited(data)):
        try:
            if index == 0 and not _is_node(message):
                continue
            nodes.append(_protobuf_node(message))
        except TraceError as error:
            raise TraceError(f"message {index}: {error}") from error
    if not nodes:
        raise TraceError("the file holds no node")
    return nodes


def _is_node(message: bytes) -> bool:
    """The first message is a GlobalMetadata unless it has fields that only a Node has."""
    return any(
        number > 2 or (number == 1 and wire_type == protobuf.VARINT)
        for number, wire_type, _ in protobuf.fields(message)
    )


def _protobuf_node(message: bytes) -> _Raw:
    raw = _Raw()
    for number, wire_type, value in protobuf.fields(message):
        if number in _DEPENDENCY_FIELDS:
            if isinstance(value, bytes):
                raw.dependencies += protobuf.packed_varints(value)
            elif wire_type == protobuf.VARINT:
                raw.dependencies.append(value)
            else:
                raise _other_schema(raw, number, wire_type)
            continue
        if _NODE_FIELDS.get(number, wire_type) != wire_type:
            raise _other_schema(raw, number, wire_type)
        if isinstance(value, bytes):
            if number == 2:
                raw.name = value.decode("utf-8", "replace")
            elif number == 10:
                _add_attribute(raw, value)
        elif number == 1:
            raw.node_id = value
        elif number == 3:
            raw.node_type = value
        elif number == 7:
            raw.duration_micros = value
    return raw


def _other_schema(raw: _Raw, number: int, wire_type: int) -> TraceError:
    return TraceError(
        f"node {raw.node_id} {raw.name!r}: field {number} has wire type {wire_type}; "
        "this is no Node of Chakra's schema 0.0.4, perhaps of an older one"
    )


def _add_attribute(raw: _Raw, message: bytes) -> None:
    name = ""
    # a set value of zero may be absent as well, see the module's docstring
    value: _Attribute = 0
    for number, wire_type, content in protobuf.fields(message):
        if number == 1 and isinstance(content, bytes):
            name = content.decode("utf-8", "replace")
        elif number in _ATTRIBUTE_VALUES:
            expected, make = _ATTRIBUTE_VALUES[number]
            if wire_type != expected:
                raise _other_schema(raw, number, wire_type)
            value = make(content)
    raw.attributes[name] = value


def _json_nodes(data: bytes) -> list[_Raw]:
    try:
        graph = json.loads(decoded(data).removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"JSON: {error}") from error
    nodes = graph.get("workload_graph")
    if not isinstance(nodes, list) or not nodes:
        raise TraceError("JSON: no list workload_graph with nodes in it")
    return [_json_node(index, node) for index, node in enumerate(nodes)]


def _json_node(index: int, node: Any) -> _Raw:
    where = f"workload_graph[{index}]"
    if not isinstance(node, dict):
        raise TraceError(f"{where}: {type(node).__name__} instead of a node")
    for key in ("Id", "NodeType"):
        if key not in node:
            raise TraceError(f"{where}: no {key}")
    dependencies: list[int] = []
    for key in ("data_deps", "ctrlDeps", "ctrl_deps"):
        ids = node.get(key, [])
        if not isinstance(ids, list):
            raise TraceError(f"{where}: {key} is {ids!r}; allowed: a list of node ids")
        dependencies += [_whole(f"{where}: {key}", value) for value in ids]
    runtime = node.get("runtime", 0)
    is_number = isinstance(runtime, int | float) and not isinstance(runtime, bool)
    if not is_number or not 0 <= runtime < 2**63:
        raise TraceError(f"{where}: runtime is {runtime!r}; allowed: microseconds from 0")
    return _Raw(
        node_id=_whole(f"{where}: Id", node["Id"]),
        name=str(node.get("Name", "")),
        node_type=_whole(f"{where}: NodeType", node["NodeType"]),
        duration_micros=runtime,
        dependencies=dependencies,
        attributes={
            key: value
            for key, value in node.items()
            if isinstance(value, int | float | str) and not isinstance(value, bool)
        },
    )


def _whole(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise TraceError(f"{where}: {value!r}; allowed: whole numbers from 0")
    return value


def _node(raw: _Raw, rank: int, compute_rate: float | None) -> TraceNode:
    where = f"node {raw.node_id} {raw.name!r}"
    if raw.node_type not in _NODE_TYPES:
        raise TraceError(
            f"{where}: type {raw.node_type}; allowed: "
            + ", ".join(f"{number} {name}" for number, name in _NODE_TYPES.items())
        )
    common: dict[str, Any] = {
        "node_id": raw.node_id,
        "name": raw.name,
        "dependencies": tuple(dict.fromkeys(raw.dependencies)),
    }
    kind = _NODE_TYPES[raw.node_type]
    if raw.node_type in (_SEND, _RECEIVE):
        size = _number(raw, "comm_size", where, kind)
        own, other = ("comm_src", "comm_dst")[:: 1 if raw.node_type == _SEND else -1]
        if _number(raw, own, where, default=0) not in (0, rank):
            raise TraceError(
                f"{where}: {own} is {raw.attributes[own]!r} in the trace of rank {rank}"
            )
        return TraceNode(
            kind=NodeKind.SEND if raw.node_type == _SEND else NodeKind.RECEIVE,
            size=size,
            peer=_number(raw, other, where, default=0),
            tag=_number(raw, "comm_tag", where, default=0),
            **common,
        )
    if raw.node_type == _COLLECTIVE:
        number = _number(raw, "comm_type", where, default=0)
        if number not in _COLLECTIVES:
            raise TraceError(f"{where}: comm_type {number}; allowed: 0 to {max(_COLLECTIVES)}")
        collective = _COLLECTIVES[number]
        barrier = collective is Collective.BARRIER
        return TraceNode(
            kind=NodeKind.COLLECTIVE,
            collective=collective,
            size=0 if barrier else _number(raw, "comm_size", where, kind),
            group=_group_name(raw),
            **common,
        )
    return TraceNode(
        kind=NodeKind.COMPUTE, duration=_duration(raw, where, kind, compute_rate), **common
    )


def _group_name(raw: _Raw) -> str:
    """The process group; without one all ranks take part."""
    name = raw.attributes.get("pg_name", "")
    return WORLD if name in ("", 0) else str(name)


def _number(raw: _Raw, name: str, where: str, kind: str = "", *, default: int | None = None) -> int:
    """An attribute that is a whole number. Raises TraceError when it is needed and absent."""
    value = raw.attributes.get(name, default)
    if value is None or (value == 0 and default is None):
        raise TraceError(
            f"{where}: a {kind} without {name}; "
            "traces of older schemas lack it and cannot be replayed as they are"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise TraceError(f"{where}: {name} is {value!r}; allowed: whole numbers from 0")
    return value


def _duration(raw: _Raw, where: str, kind: str, compute_rate: float | None) -> float:
    """Seconds of a node that computes or moves memory."""
    if raw.duration_micros or raw.node_type == _METADATA:
        return raw.duration_micros * MICROSECOND
    operations = _number(raw, "num_ops", where, default=0)
    if operations and compute_rate is not None:
        return operations / compute_rate
    if operations:
        raise TraceError(
            f"{where}: a {kind} with num_ops but no duration_micros; give the compute rate"
        )
    if raw.node_type != _COMPUTE and _number(raw, "tensor_size", where, default=0):
        raise TraceError(f"{where}: a {kind} with tensor_size but no duration_micros")
    return 0.0


def rank_of_file(path: Path) -> int:
    """The rank in a name ``<prefix>.<rank>.et`` (also .json and .gz). Raises TraceError."""
    parts = path.name.removesuffix(".gz").split(".")
    if len(parts) < 3 or not (parts[-2].isascii() and parts[-2].isdigit()):
        raise TraceError(f"{path}: no rank in the name; expected <prefix>.<rank>.et")
    return int(parts[-2])


def files_by_rank(paths: Iterable[Path]) -> list[Path]:
    """The files in the order of their ranks. Raises TraceError unless they are 0, 1, 2, ..."""
    by_rank: dict[int, Path] = {}
    for path in paths:
        rank = rank_of_file(path)
        if rank in by_rank:
            raise TraceError(f"{path}: rank {rank} has a file already, {by_rank[rank]}")
        by_rank[rank] = path
    for rank in range(len(by_rank)):
        if rank not in by_rank:
            raise TraceError(f"no file of rank {rank}; there are {len(by_rank)} files")
    return [by_rank[rank] for rank in range(len(by_rank))]
