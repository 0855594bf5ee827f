"""Double binary tree: two trees with half of the data each, so that the leaves of one work as the
inner ranks of the other (Sanders, Speck and Träff, 2009; NCCL's construction, trees.cc).
"""

from __future__ import annotations

from traffic.collectives.algorithms.base import Algorithm, register_algorithm
from traffic.collectives.algorithms.binary_tree import (
    TREE_CHUNKING,
    TreeSchedule,
    filling,
    tree_sends,
)
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Schedule
from traffic.collectives.trees import Tree, double_binary_tree, over_servers


def channel_trees(request: CollectiveRequest) -> list[Tree]:
    """The first tree for channels 0 to c - 1, the second for channels c to 2c - 1, as NCCL."""
    gpus = request.gpus_per_server
    return [
        over_servers(tree, gpus, channel % gpus)
        for tree in double_binary_tree(request.servers)
        for channel in range(request.channels)
    ]


@register_algorithm
class DoubleBinaryTree(Algorithm):
    """Twice ``channels`` trees, each with its share of the data."""

    name = "double-binary-tree"
    collectives = frozenset({Collective.ALL_REDUCE, Collective.BARRIER})
    chunking = TREE_CHUNKING

    def chunking_of(self, request: CollectiveRequest) -> Chunking:
        """The request's own, or slices that are small enough to fill the trees."""
        trees = channel_trees(request)
        return request.chunking or filling(request, trees[0], len(trees))

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        return TreeSchedule(request, self.name, chunking, channel_trees(request)).build()

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """A tree's share to the parent and to each child, in both trees."""
        return tree_sends(request, rank, channel_trees(request))
