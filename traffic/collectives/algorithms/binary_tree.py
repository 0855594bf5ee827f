"""Binary tree: logarithmic depth, at the price of ranks with two senders (2:1 and 1:2 traffic).

The shape is NCCL's (src/graph/trees.cc): over servers, with a chain inside each. ``TreeSchedule``
is shared with the double binary tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.partition import by_block
from traffic.collectives.request import Chunking, Collective, CollectiveRequest, cut
from traffic.collectives.schedule import Layout, Schedule
from traffic.collectives.trees import Tree, binary_tree, over_servers, rotated

TREE_CHUNKING = Chunking(slice_bytes=2**19, slices_per_chunk=1, messages_in_flight=8)
"""NCCL's tree works in chunks of one step (512 KiB), up to NCCL_STEPS of them in flight."""

_SMALLEST_SLICE = 2**15
_SLICES_PER_LEVEL = 8


def channel_tree(request: CollectiveRequest, channel: int) -> Tree:
    """The tree of a channel. Chains end at another GPU per channel, so that all NICs are used.

    The root of the collective is the root of the tree.
    """
    gpus = request.gpus_per_server
    server, local = divmod(request.root, gpus)
    head = local if request.collective.has_root else (local + channel) % gpus
    return over_servers(rotated(binary_tree(request.servers), server), gpus, head)


@register_algorithm
class BinaryTree(Algorithm):
    """``channels`` trees of the same shape, each with its share of the data."""

    name = "binary-tree"
    collectives = frozenset(
        {Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE, Collective.BARRIER}
    )
    chunking = TREE_CHUNKING

    def chunking_of(self, request: CollectiveRequest) -> Chunking:
        """The request's own, or slices that are small enough to fill the tree."""
        return request.chunking or filling(request, channel_tree(request, 0), request.channels)

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        trees = [channel_tree(request, channel) for channel in range(request.channels)]
        return TreeSchedule(request, self.name, chunking, trees).build()

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """A channel's share to the parent on the way up, to each child on the way down."""
        return tree_sends(
            request, rank, [channel_tree(request, channel) for channel in range(request.channels)]
        )


def filling(request: CollectiveRequest, tree: Tree, trees: int) -> Chunking:
    """Slices of which a tree's share has several per level, so that all levels work at once.

    Halved from the largest size as NCCL does for its chains (enqueue.cc: eight chunks per level of
    depth, down to 32 KiB).
    """
    share = request.elements * request.itemsize / trees
    size = TREE_CHUNKING.slice_bytes
    while size > _SMALLEST_SLICE and share / size < _SLICES_PER_LEVEL * tree.depth:
        size //= 2
    return replace(TREE_CHUNKING, slice_bytes=size)


def tree_sends(request: CollectiveRequest, rank: int, trees: Sequence[Tree]) -> dict[int, int]:
    """Elements that a rank sends to each peer when every tree carries an equal share."""
    sent: list[dict[int, int]] = []
    for tree, share in zip(trees, cut(request.elements, len(trees)), strict=True):
        if request.collective is not Collective.BROADCAST and tree.parent[rank] >= 0:
            sent.append({tree.parent[rank]: share})
        if request.collective is not Collective.REDUCE:
            sent.append(dict.fromkeys(tree.children[rank], share))
    return merge(*sent)


class TreeSchedule:
    """Makes the schedule of a reduction up, a broadcast down, or both; one tree per channel."""

    def __init__(
        self,
        request: CollectiveRequest,
        name: str,
        chunking: Chunking,
        trees: Sequence[Tree],
    ) -> None:
        self._request = request
        self._trees = trees
        sizes, (self._shares,) = by_block(
            [request.elements],
            channels=len(trees),
            itemsize=request.itemsize,
            chunking=chunking,
        )
        self._up = request.collective is not Collective.BROADCAST
        self._down = request.collective is not Collective.REDUCE
        layouts = [
            Layout(
                sizes if self._up or rank == request.root else (),
                sizes if self._down or rank == request.root else (),
            )
            for rank in range(request.ranks)
        ]
        self._output = [layout.first_output for layout in layouts]
        self._has_output = [bool(layout.output) for layout in layouts]
        self._builder = ScheduleBuilder(request, name, chunking, layouts)
        # the slot that holds each rank's sum so far, of the slice that is being worked on
        self._held = [0] * request.ranks

    def build(self) -> Schedule:
        """The schedule: slice after slice, channels in turn."""
        orders = [tree.top_down() for tree in self._trees]
        for index in range(max(map(len, self._shares))):
            for channel, (tree, order) in enumerate(zip(self._trees, orders, strict=True)):
                if index >= len(self._shares[channel]):
                    continue
                slot = self._shares[channel][index]
                if self._up:
                    for rank in reversed(order):
                        self._gather_sums(channel, tree, rank, slot)
                else:
                    target = self._output[tree.root] + slot
                    self._builder.copy(tree.root, channel, [target], [slot])
                if self._down:
                    for rank in order:
                        self._pass_down(channel, tree, rank, slot)
        return self._builder.build()

    def _gather_sums(self, channel: int, tree: Tree, rank: int, slot: int) -> None:
        """A rank adds what its children sent to its own data.

        The first child's message lands where the sum is made, the others' in scratch memory. The
        final value may overwrite the sum: it cannot exist before the parent has got that.
        """
        builder = self._builder
        size = builder.sizes(rank, [slot])
        held = slot
        for position, child in enumerate(tree.children[rank]):
            if position == 0 and self._has_output[rank]:
                place = [self._output[rank] + slot]
            else:
                place = builder.scratch(rank, size)
            builder.transfer(channel, child, [self._held[child]], rank, place)
            if position == 0:
                builder.reduce(rank, channel, place, [slot])
                held = place[0]
            else:
                builder.reduce(rank, channel, [held], place)
        self._held[rank] = held

    def _pass_down(self, channel: int, tree: Tree, rank: int, slot: int) -> None:
        """A rank sends the final value to its children."""
        for child in tree.children[rank]:
            source, target = self._output[rank] + slot, self._output[child] + slot
            self._builder.transfer(channel, rank, [source], child, [target])
