"""Reads the text workloads of ASTRA-sim 1.0 and SimAI: one line per layer, the same on all ranks.

Line 1 is the parallelism, line 2 the number of layers; a layer is

    name reserved fwd-compute fwd-comm fwd-size ig-compute ig-comm ig-size
    wg-compute wg-comm wg-size update-time

with fwd the forward pass, ig and wg the backward pass of inputs and weights. HYBRID_CUSTOMIZED
adds the layer's own parallelism. Who depends on whom follows mlcommons/chakra's
src/converter/text_converter.py: the passes are chains, gradients' collectives overlap them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from traffic.collectives.request import Collective
from traffic.replay.check import check
from traffic.replay.files import decoded, unpacked
from traffic.replay.trace import (
    NODE_LIMIT,
    WORLD,
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
)

COMPUTE_UNIT = 1e-9
"""Seconds of a unit of compute time: a tick at 1 GHz in ASTRA-sim, a nanosecond in SimAI."""

LAYER_LIMIT = 100_000
"""Layers of a workload; SimAI's largest example has 1789."""

_COLLECTIVES = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLTOALL": Collective.ALL_TO_ALL,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
}
_COMMUNICATION = re.compile(r"^(ALLREDUCE|ALLTOALL|ALLGATHER|REDUCESCATTER)(|_EP|_DP_EP)$")
_NUMBER = re.compile(r"^[0-9]{1,18}$")

_SIMAI = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
_TRANSFORMER = "HYBRID_TRANSFORMER"
_CUSTOMIZED = "HYBRID_CUSTOMIZED"
_LAYERWISE = ("DATA", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA")
_POLICIES = (*_LAYERWISE, _CUSTOMIZED, _TRANSFORMER, _SIMAI, "MICRO")


@dataclass(frozen=True, slots=True)
class Phase:
    """One pass of one layer: seconds, then a collective (None for none) in the named group."""

    duration: float
    collective: Collective | None = None
    group: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """A line of the file. ``policy`` is the parallelism that holds for it."""

    name: str
    policy: str
    forward: Phase
    input_gradient: Phase
    weight_gradient: Phase
    update: float


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """A file as it stands. ``parameters`` are the named numbers of the first line."""

    policy: str
    parameters: dict[str, int]
    layers: tuple[Layer, ...]


def is_text_workload(data: bytes) -> bool:
    """Whether unpacked data begin with the name of a parallelism, known or not."""
    return re.match(rb"\s*[A-Z][A-Z_]+\b", data) is not None


def parse_text_workload(data: bytes, *, compute_unit: float = COMPUTE_UNIT) -> TextWorkload:
    """The workload in a file, possibly gzipped. Raises TraceError that names the line."""
    lines = list(_lines(decoded(unpacked(data))))
    if len(lines) < 2:
        raise TraceError("text workload: fewer than 2 lines; parallelism and number of layers")
    policy, parameters = _first_line(lines[0][1])
    where, words = lines[1]
    if len(words) != 1 or not _NUMBER.match(words[0]):
        raise TraceError(f"line {where}: {' '.join(words)!r}; allowed: the number of layers")
    count = int(words[0])
    if not 1 <= count <= LAYER_LIMIT:
        raise TraceError(f"line {where}: {count} layers; allowed: 1 to {LAYER_LIMIT}")
    if len(lines) - 2 < count:
        raise TraceError(f"text workload: {count} layers announced, {len(lines) - 2} are there")
    layers = tuple(
        _layer(number, words, policy, compute_unit) for number, words in lines[2 : 2 + count]
    )
    return TextWorkload(policy, parameters, layers)


def text_workload_trace(
    workload: TextWorkload,
    *,
    world_size: int | None = None,
    model_group: int | None = None,
    passes: int = 1,
    one_stage: bool = False,
    source: str = "text workload",
) -> Trace:
    """The trace of ``passes`` iterations on all ranks.

    ``world_size`` defaults to the file's ``all_gpus``; ``model_group``, the ranks of a model
    (tensor) parallel group, to its ``model_parallel_NPU_group``. A file with pipeline stages
    (``pp`` above 1) holds the layers of one only: ``one_stage`` replays that stage, on
    ``world_size / pp`` ranks, without the transfers between stages. Raises TraceError.
    """
    p = workload.parameters
    world = world_size if world_size is not None else p.get("all_gpus")
    if world is None:
        raise TraceError(f"{source}: the file does not say how many ranks; give the world size")
    if world < 1 or passes < 1:
        raise TraceError(f"{source}: {world} ranks, {passes} passes; at least 1 of each")
    stages = p.get("pp", 1)
    if stages > 1 and not one_stage:
        raise TraceError(
            f"{source}: pp: {stages}; the file has the layers of one stage and nothing of the "
            "transfers between stages; ask for that one stage"
        )
    if stages > 1 and world_size is None:
        world //= stages
    nodes = 7 * len(workload.layers) * passes * world
    if nodes > NODE_LIMIT:
        raise TraceError(
            f"{source}: {len(workload.layers)} layers on {world} ranks make about {nodes} nodes; "
            f"at most {NODE_LIMIT}: give a smaller world size"
        )
    groups = _Groups(workload, world, model_group, source)
    ranks = tuple(tuple(_rank_nodes(workload, groups, r, passes)) for r in range(world))
    trace = Trace(source, ranks, groups.members)
    check(trace)
    return trace


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if words:
            yield number, words


def _first_line(words: list[str]) -> tuple[str, dict[str, int]]:
    policy = words[0]
    if policy not in _POLICIES:
        raise TraceError(f"line 1: parallelism {policy!r}; allowed: {', '.join(_POLICIES)}")
    parameters: dict[str, int] = {}
    for name, value in itertools.pairwise(words):
        if name.endswith(":") and _NUMBER.match(value):
            parameters[name.removesuffix(":")] = int(value)
    for name in ("checkpoints", "checkpoint_initiates"):
        if parameters.get(name, 0):
            raise TraceError(f"line 1: {name}: {parameters[name]}; recomputation is not replayed")
    for name in ("model_parallel_NPU_group", "ep", "pp", "all_gpus"):
        if parameters.get(name, 1) == 0:
            raise TraceError(f"line 1: {name}: 0; at least 1")
    return policy, parameters


def _layer(number: int, words: list[str], policy: str, unit: float) -> Layer:
    columns = 13 if policy == _CUSTOMIZED else 12
    if len(words) < columns:
        raise TraceError(f"line {number}: {len(words)} columns; a layer has {columns}")
    name = words[0]
    if policy == _CUSTOMIZED:
        policy = words[12]
        if policy not in _LAYERWISE:
            raise TraceError(
                f"line {number}, layer {name}: parallelism {policy!r}; "
                f"allowed: {', '.join(_LAYERWISE)}"
            )

    def phase(first: int, default_group: str) -> Phase:
        compute, communication, size = words[first : first + 3]
        duration = _number(number, name, compute) * unit
        size_bytes = _number(number, name, size)
        if communication == "NONE" or size_bytes == 0:
            return Phase(duration)
        match = _COMMUNICATION.match(communication)
        if match is None:
            raise TraceError(
                f"line {number}, layer {name}: communication {communication!r}; allowed: NONE, "
                f"{', '.join(_COLLECTIVES)}, each with or without _EP or _DP_EP"
            )
        group = match[2].removeprefix("_") or default_group
        return Phase(duration, _COLLECTIVES[match[1]], group, size_bytes)

    return Layer(
        name=name,
        policy=policy,
        forward=phase(2, "TP"),
        input_gradient=phase(5, "TP"),
        weight_gradient=phase(8, "DP"),
        update=_number(number, name, words[11]) * unit,
    )


def _number(number: int, name: str, word: str) -> int:
    if not _NUMBER.match(word):
        raise TraceError(f"line {number}, layer {name}: {word!r}; allowed: whole numbers from 0")
    return int(word)


class _Groups:
    """Who communicates with whom: TP and DP, and EP and DP_EP as parts of DP (SimAI)."""

    def __init__(
        self, workload: TextWorkload, world: int, model_group: int | None, source: str
    ) -> None:
        self._source = source
        self._policy = workload.policy
        self._expert = workload.parameters.get("ep", 1)
        self._world = world
        self._model = (
            model_group
            if model_group is not None
            else workload.parameters.get("model_parallel_NPU_group")
        )
        if self._model is not None and (self._model < 1 or world % self._model):
            raise TraceError(
                f"{source}: model parallel groups of {self._model} do not divide {world} ranks"
            )
        self.members: dict[str, tuple[int, ...]] = {}

    @property
    def sizes_are_of_the_whole(self) -> bool:
        """SimAI gives an all-gather's result, as a reduce-scatter's input; ASTRA-sim one part."""
        return self._policy == _SIMAI

    def of(self, rank: int, kind: str, policy: str) -> str:
        """The group of a rank for a communication, "" if it has nobody to talk to."""
        if policy == "MICRO":
            return WORLD
        if policy in ("DATA", "MODEL"):
            concerned = kind == ("DP" if policy == "DATA" else "TP")
            return WORLD if concerned else ""
        if self._model is None:
            raise TraceError(f"{self._source}: {policy} needs the size of model parallel groups")
        inner, outer = self._model, self._world // self._model
        if policy == "HYBRID_DATA_MODEL":
            inner, outer, kind = outer, inner, {"TP": "DP", "DP": "TP"}.get(kind, kind)
        position, lane = divmod(rank, inner)
        if kind == "TP":
            return self._add("inner", position, range(position * inner, (position + 1) * inner))
        lanes = range(lane, self._world, inner)
        if kind == "DP":
            return self._add("outer", lane, lanes)
        if outer % self._expert:
            raise TraceError(f"{self._source}: ep: {self._expert} does not divide {outer} replicas")
        block, place = divmod(position, self._expert)
        if kind == "EP":
            members = lanes[block * self._expert : (block + 1) * self._expert]
            return self._add(f"ep{lane}-", block, members)
        return self._add(f"dp-ep{lane}-", place, lanes[place :: self._expert])

    def _add(self, stem: str, index: int, members: range) -> str:
        if len(members) < 2:
            return ""
        name = f"{stem}{index}"
        self.members.setdefault(name, tuple(members))
        return name

    def size(self, group: str) -> int:
        """Number of members."""
        return self._world if group == WORLD else len(self.members[group])


class _RankBuilder:
    """The nodes of one rank in order of creation."""

    def __init__(self, groups: _Groups, rank: int) -> None:
        self._groups = groups
        self._rank = rank
        self.nodes: list[TraceNode] = []

    def compute(self, name: str, duration: float, after: list[int]) -> list[int]:
        """A computation; returns what the next has to wait for."""
        if not duration:
            return after
        return self._add(name, after, kind=NodeKind.COMPUTE, duration=duration)

    def communicate(self, name: str, layer: Layer, phase: Phase, after: list[int]) -> list[int]:
        """A phase's collective, or nothing if it has none."""
        if phase.collective is None:
            return after
        group = self._groups.of(self._rank, phase.group, layer.policy)
        if not group or self._groups.size(group) < 2:
            return after
        size = phase.size
        if phase.collective is Collective.ALL_GATHER and self._groups.sizes_are_of_the_whole:
            size = -(-size // self._groups.size(group))
        return self._add(
            name,
            after,
            kind=NodeKind.COLLECTIVE,
            collective=phase.collective,
            size=size,
            group=group,
        )

    def weight_gradient(self, layer: Layer, after: list[int]) -> tuple[list[int], list[int]]:
        """Computation, collective and update of a layer's weights; the ends of first and last."""
        phase = layer.weight_gradient
        computed = self.compute(f"{layer.name} wg", phase.duration, after)
        reduced = self.communicate(f"{layer.name} wg", layer, phase, computed)
        return computed, self.compute(f"{layer.name} update", layer.update, reduced)

    def _add(self, name: str, after: list[int], **fields: Any) -> list[int]:
        node = TraceNode(
            node_id=len(self.nodes), name=name, dependencies=tuple(dict.fromkeys(after)), **fields
        )
        self.nodes.append(node)
        return [node.node_id]


def _rank_nodes(workload: TextWorkload, groups: _Groups, rank: int, passes: int) -> list[TraceNode]:
    builder = _RankBuilder(groups, rank)
    if workload.policy == "MICRO":
        for index in range(passes):
            for layer in workload.layers:
                phase = replace(layer.weight_gradient, duration=0.0)
                builder.communicate(f"{layer.name} {index}", layer, phase, [])
        return builder.nodes
    updated: list[list[int]] = [[] for _ in workload.layers]
    chain: list[int] = []
    for _ in range(passes):
        for index, layer in enumerate(workload.layers):
            chain = builder.compute(
                f"{layer.name} fwd", layer.forward.duration, chain + updated[index]
            )
            chain = builder.communicate(f"{layer.name} fwd", layer, layer.forward, chain)
        chain, updated = _backward(builder, workload.layers, chain)
    return builder.nodes


def _backward(
    builder: _RankBuilder, layers: tuple[Layer, ...], chain: list[int]
) -> tuple[list[int], list[list[int]]]:
    """The backward pass; returns the end of the chain and, by layer, the end of its update.

    With data parallelism alone the weights come first, else the inputs, whose collective overlaps
    the weights' computation. Nobody needs the gradient of the first layer's inputs.
    """
    updated: list[list[int]] = [[] for _ in layers]
    for index in reversed(range(len(layers))):
        layer = layers[index]
        inputs = layer.input_gradient
        if index == 0:
            inputs = Phase(0.0 if layer.policy == "DATA" else inputs.duration)
        if layer.policy == "DATA":
            chain, updated[index] = builder.weight_gradient(layer, chain)
            chain = builder.compute(f"{layer.name} ig", inputs.duration, chain)
            chain = builder.communicate(f"{layer.name} ig", layer, inputs, chain)
        else:
            computed = builder.compute(f"{layer.name} ig", inputs.duration, chain)
            sent = builder.communicate(f"{layer.name} ig", layer, inputs, computed)
            computed, updated[index] = builder.weight_gradient(layer, computed)
            chain = [*computed, *sent]
    return chain, updated
