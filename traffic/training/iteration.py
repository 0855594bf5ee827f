"""Turns a training job into a trace: every rank's computations, collectives and transfers.

Per rank, computations form one chain in the order of the 1F1B schedule, as on a GPU's one compute
stream. Tensor and expert parallel collectives lie in the chain. Gradients' collectives hang off
it: a bucket starts when the backward pass of the last micro-batch has filled it and overlaps what
follows. Collectives of a group keep their order, as on an NCCL stream. The lookup of embeddings
costs nothing; gradients accumulate over micro-batches and are reduced once.
"""

from __future__ import annotations

import itertools
from typing import Any

from traffic.collectives.request import Collective
from traffic.replay.check import check
from traffic.replay.trace import NODE_LIMIT, NodeKind, Trace, TraceNode
from traffic.training.experts import token_matrix, transposed
from traffic.training.job import TrainingJob
from traffic.training.parallelism import Sharding
from traffic.training.pipeline import one_forward_one_backward
from traffic.training.shape import TrainingError
from traffic.training.volumes import (
    activation_bytes,
    dense_layer_bytes,
    embedding_bytes,
    expert_bytes,
    expert_layer_bytes,
    stage_transfer_bytes,
)


def training_trace(job: TrainingJob, *, iterations: int = 1) -> Trace:
    """The trace of a number of iterations on all ranks. Raises TrainingError if it is too large."""
    if iterations < 1:
        raise TrainingError(f"iterations: {iterations}; at least 1")
    p = job.parallelism
    nodes = 12 * job.layers_per_stage * job.micro_batches * iterations * p.world_size
    if nodes > NODE_LIMIT:
        raise TrainingError(
            f"about {nodes} operations; at most {NODE_LIMIT}: fewer layers, micro-batches or ranks"
        )
    groups = p.groups()
    ranks = []
    for rank in range(p.world_size):
        program = _RankProgram(job, rank, groups)
        for iteration in range(iterations):
            program.iteration(iteration)
        ranks.append(tuple(program.nodes))
    trace = Trace("training job", tuple(ranks), groups)
    check(trace)
    return trace


class _RankProgram:
    """Collects one rank's nodes."""

    def __init__(self, job: TrainingJob, rank: int, groups: dict[str, tuple[int, ...]]) -> None:
        self._job = job
        self._rank = rank
        self._groups = groups
        self._p = job.parallelism
        self._at = self._p.coordinates(rank)
        self._slow = job.slowdown.get(rank, 1.0)
        self.nodes: list[TraceNode] = []
        self._chain: tuple[int, ...] = ()
        """What the next computation has to wait for."""
        self._last_call: dict[str, int] = {}
        """Group -> its latest collective."""
        self._layer_end: int | None = None
        """The end of the latest layer's computation."""
        self._optimizer: int | None = None
        """The optimizer's latest step."""
        self._pending: list[tuple[str, int, int]] = []
        """Gradients that wait for their bucket to fill: group, bytes, node that made them."""
        self._reduced: list[int] = []
        """Nodes that the optimizer has to wait for."""
        self._sharded: list[tuple[str, int]] = []
        """Buckets whose new parameters are gathered after the optimizer: group, bytes."""

    # the schedule

    def iteration(self, iteration: int) -> None:
        """Add all passes of an iteration and the optimizer's step."""
        m, stage = self._job.micro_batches, self._at.pp
        for step in one_forward_one_backward(stage, self._p.pp, m):
            if step.forward:
                self._forward(iteration, step.micro_batch)
            else:
                self._backward(iteration, step.micro_batch)
        if self._job.shape.tied_embeddings and 0 < stage == self._p.pp - 1:
            # only now: the first stage adds its part after its last backward pass
            self._gradient_of_embedding()
        self._flush_gradients()
        self._step_optimizer()

    def _forward(self, iteration: int, micro_batch: int) -> None:
        name = f"fwd {micro_batch}"
        self._receive_activations(name, iteration, micro_batch, forward=True)
        self._layers(name, iteration, micro_batch, forward=True)
        if self._at.pp == self._p.pp - 1:
            self._compute(f"{name} logits", self._logits_seconds())
        self._send_activations(name, iteration, micro_batch, forward=True)

    def _backward(self, iteration: int, micro_batch: int) -> None:
        name = f"bwd {micro_batch}"
        last = micro_batch == self._job.micro_batches - 1
        self._receive_activations(name, iteration, micro_batch, forward=False)
        if self._at.pp == self._p.pp - 1:
            self._compute(f"{name} logits", 2 * self._logits_seconds())
            if last and self._p.pp > 1 and not self._job.shape.tied_embeddings:
                self._gradient_of_embedding()
        self._layers(name, iteration, micro_batch, forward=False)
        if last and self._at.pp == 0:
            self._gradient_of_embedding()
        self._send_activations(name, iteration, micro_batch, forward=False)

    # layers

    def _layers(self, name: str, iteration: int, micro_batch: int, *, forward: bool) -> None:
        """All layers of the stage; while one computes, the parameters of the next are gathered."""
        layers = list(range(self._job.layers_per_stage))
        if not forward:
            layers.reverse()
        first_use = forward and micro_batch == 0
        parameters = self._gather_layer(name, layers[0], first_use=first_use)
        for layer, following in itertools.zip_longest(layers, layers[1:]):
            self._chain = (*self._chain, *parameters)
            if following is not None:
                parameters = self._gather_layer(name, following, first_use=first_use)
            self._layer(name, iteration, micro_batch, layer, forward=forward)
            if not forward and micro_batch == self._job.micro_batches - 1:
                self._gradient_of_layer()

    def _layer(
        self, name: str, iteration: int, micro_batch: int, layer: int, *, forward: bool
    ) -> None:
        """Attention, then the feed-forward part; backward in reverse, at twice the cost."""
        job, cost = self._job, (1 if forward else 2)
        tokens, shape = job.micro_batch_tokens, job.shape
        rate = job.compute_rate * self._p.tp
        attention = cost * shape.attention_flops(tokens) / rate
        feed_forward = cost * shape.feed_forward_flops(tokens) / rate
        name = f"{name} layer {self._at.pp * job.layers_per_stage + layer}"
        if self._p.tp == 1 and shape.experts == 1:
            self._compute(name, attention + feed_forward)
        elif forward:
            self._attention(name, attention)
            self._feed_forward(name, feed_forward, (iteration, micro_batch, layer))
        else:
            self._feed_forward(name, feed_forward, (iteration, micro_batch, layer))
            self._attention(name, attention)
        self._layer_end = self._chain[0]

    def _attention(self, name: str, seconds: float) -> None:
        self._compute(f"{name} attention", seconds)
        self._tensor_parallel(f"{name} attention")

    def _feed_forward(self, name: str, seconds: float, labels: tuple[int, int, int]) -> None:
        group = self._p.ep_group(self._at)
        if group not in self._groups:
            self._compute(f"{name} feed-forward", seconds)
            self._tensor_parallel(f"{name} feed-forward")
            return
        members = self._groups[group]
        own = members.index(self._rank)
        # the routing of a token is that of its forward pass, on all tensor parallel ranks
        matrix = token_matrix(
            len(members),
            expert_bytes(self._job),
            imbalance=self._job.imbalance,
            seed=self._job.seed,
            labels=(*labels, self._at.pp, self._at.dp // self._p.ep),
        )
        load = sum(row[own] for row in matrix) / expert_bytes(self._job)
        self._expert_exchange(f"{name} dispatch", group, matrix[own])
        self._compute(f"{name} experts", seconds * load)
        self._tensor_parallel(f"{name} experts")
        self._expert_exchange(f"{name} combine", group, transposed(matrix)[own])

    def _tensor_parallel(self, name: str) -> None:
        self._chained_collective(
            f"{name} tp", Collective.ALL_REDUCE, self._p.tp_group(self._at),
            size=activation_bytes(self._job),
        )  # fmt: skip

    def _expert_exchange(self, name: str, group: str, sizes: list[int]) -> None:
        self._chained_collective(
            name, Collective.ALL_TO_ALLV, group, size=sum(sizes), sizes=tuple(sizes)
        )

    def _logits_seconds(self) -> float:
        flops = self._job.shape.logits_flops(self._job.micro_batch_tokens)
        return flops / (self._job.compute_rate * self._p.tp)

    # between stages

    def _neighbour(self, forward: bool, *, towards: bool) -> int | None:
        """The rank that a pass comes from, or goes to (``towards``); None at the ends."""
        stage = self._at.pp + (1 if forward == towards else -1)
        if not 0 <= stage < self._p.pp:
            return None
        return self._p.rank(self._at.tp, self._at.dp, stage)

    def _message(self, iteration: int, micro_batch: int) -> dict[str, int]:
        """Size and tag; forward and backward differ in who sends to whom."""
        tag = iteration * self._job.micro_batches + micro_batch
        return {"size": stage_transfer_bytes(self._job), "tag": tag}

    def _receive_activations(
        self, name: str, iteration: int, micro_batch: int, *, forward: bool
    ) -> None:
        peer = self._neighbour(forward, towards=False)
        if peer is None:
            return
        received = self._add(
            f"{name} receive", (), kind=NodeKind.RECEIVE, peer=peer,
            **self._message(iteration, micro_batch),
        )  # fmt: skip
        self._chain = (*self._chain, received)
        group = self._p.tp_group(self._at)
        if self._job.scatter_gather:
            self._chained_collective(
                f"{name} gather", Collective.ALL_GATHER, group,
                size=stage_transfer_bytes(self._job),
            )  # fmt: skip

    def _send_activations(
        self, name: str, iteration: int, micro_batch: int, *, forward: bool
    ) -> None:
        peer = self._neighbour(forward, towards=True)
        if peer is not None:
            self._add(
                f"{name} send", self._chain, kind=NodeKind.SEND, peer=peer,
                **self._message(iteration, micro_batch),
            )  # fmt: skip

    # parameters and gradients

    def _gather_layer(self, name: str, layer: int, *, first_use: bool) -> list[int]:
        """All-gather a fully sharded layer once the layer before the current one is done.

        That bounds the layers in memory to two, as PyTorch FSDP does (limit_all_gathers).
        """
        if self._p.sharding is not Sharding.FULL or not (first_use or self._job.reshard):
            return []
        after = tuple(node for node in (self._layer_end, self._optimizer) if node is not None)
        gathered = []
        for group, size in self._layer_parts():
            if group in self._groups and size:
                gathered.append(
                    self._collective(
                        f"{name} layer {layer} parameters", Collective.ALL_GATHER, group,
                        after, size=-(-size // len(self._groups[group])),
                    )
                )  # fmt: skip
        return gathered

    def _layer_parts(self) -> tuple[tuple[str, int], ...]:
        """The groups that a layer's parameters are replicated over, and bytes."""
        return (
            (self._p.dp_group(self._at), dense_layer_bytes(self._job)),
            (self._p.expert_dp_group(self._at), expert_layer_bytes(self._job)),
        )

    def _gradient_of_layer(self) -> None:
        for group, size in self._layer_parts():
            if group in self._groups and size:
                self._pending.append((group, size, self._chain[0]))
                filled = sum(size for other, size, _ in self._pending if other == group)
                if self._p.sharding is Sharding.FULL or filled >= self._job.bucket:
                    self._flush_gradients(group)

    def _gradient_of_embedding(self) -> None:
        """Tied tables are first added up between the first and the last stage."""
        size = embedding_bytes(self._job, self._at.pp)
        if not size:
            return
        ready = self._chain[0]
        tied = self._p.embedding_group(self._at)
        if self._job.shape.tied_embeddings and tied in self._groups:
            ready = self._collective(
                "tied embeddings", Collective.ALL_REDUCE, tied, self._chain, size=size
            )
            self._reduced.append(ready)
        group = self._p.dp_group(self._at)
        if group in self._groups:
            self._pending.append((group, size, ready))
            if self._p.sharding is Sharding.FULL:
                # the tables stay whole, so that their new values have to be gathered
                self._flush_gradients(group, keep_whole=True)

    def _flush_gradients(self, only: str | None = None, *, keep_whole: bool = False) -> None:
        """Reduce what waits, one bucket for each group."""
        sharding = self._p.sharding
        for group in dict.fromkeys(group for group, _, _ in self._pending):
            if only not in (None, group):
                continue
            size = sum(size for other, size, _ in self._pending if other == group)
            after = tuple(node for other, _, node in self._pending if other == group)
            self._pending = [entry for entry in self._pending if entry[0] != group]
            kind, members = Collective.ALL_REDUCE, len(self._groups[group])
            if sharding is not Sharding.NONE:
                kind = Collective.REDUCE_SCATTER
                size = -(-size // members) * members
            self._reduced.append(self._collective("gradients", kind, group, after, size=size))
            if sharding is Sharding.OPTIMIZER or keep_whole:
                self._sharded.append((group, size // members))

    def _step_optimizer(self) -> None:
        self._chain = (*self._chain, *self._reduced)
        self._compute("optimizer", self._job.optimizer_seconds)
        self._optimizer = self._chain[0]
        self._reduced.clear()
        for group, size in self._sharded:
            gathered = self._collective(
                "new parameters", Collective.ALL_GATHER, group, (self._optimizer,), size=size
            )
            self._chain = (*self._chain, gathered)
        self._sharded.clear()

    # nodes

    def _compute(self, name: str, seconds: float) -> None:
        self._chain = (
            self._add(
                name, self._chain, kind=NodeKind.COMPUTE, duration=seconds * self._slow
            ),
        )  # fmt: skip

    def _chained_collective(
        self, name: str, collective: Collective, group: str, **fields: Any
    ) -> None:
        """A collective that the next computation waits for; none if the rank is alone."""
        if group in self._groups:
            self._chain = (self._collective(name, collective, group, self._chain, **fields),)

    def _collective(
        self,
        name: str,
        collective: Collective,
        group: str,
        after: tuple[int, ...],
        **fields: Any,
    ) -> int:
        before = self._last_call.get(group)
        after = after if before is None else (*after, before)
        node = self._add(
            name, after, kind=NodeKind.COLLECTIVE, collective=collective, group=group, **fields
        )
        self._last_call[group] = node
        return node

    def _add(self, name: str, after: tuple[int, ...], **fields: Any) -> int:
        node = TraceNode(
            node_id=len(self.nodes), name=name, dependencies=tuple(dict.fromkeys(after)), **fields
        )
        self.nodes.append(node)
        return node.node_id
