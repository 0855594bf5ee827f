"""Trees over ranks: NCCL's binary tree, its double binary tree, and chains inside servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tree:
    """``parent[rank]``, -1 for the root, and ``children[rank]`` in the order of their arrival."""

    parent: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def root(self) -> int:
        """The rank without a parent."""
        return self.parent.index(-1)

    def top_down(self) -> list[int]:
        """All ranks, parents before their children."""
        order = [self.root]
        for rank in order:
            order += self.children[rank]
        return order

    @property
    def depth(self) -> int:
        """Edges from the root to the rank that is furthest from it."""
        level = [0] * len(self.parent)
        for rank in self.top_down()[1:]:
            level[rank] = level[self.parent[rank]] + 1
        return max(level)

    def relabelled(self, names: list[int]) -> Tree:
        """The same tree with rank ``names[i]`` in the place of rank i."""
        parent = [-1] * len(names)
        children: list[tuple[int, ...]] = [()] * len(names)
        for rank, name in enumerate(names):
            parent[name] = names[self.parent[rank]] if self.parent[rank] >= 0 else -1
            children[name] = tuple(names[child] for child in self.children[rank])
        return Tree(tuple(parent), tuple(children))


def binary_tree(ranks: int) -> Tree:
    """NCCL's binary tree (src/graph/trees.cc, ncclGetBtree): a rank's lowest bit is its height.

    Rank 0 is the root, with one child; odd ranks are leaves.
    """
    parent, children = [], []
    for rank in range(ranks):
        bit = rank & -rank if rank else 1 << (ranks - 1).bit_length()
        up = (rank ^ bit) | (bit << 1)
        if up >= ranks:
            up = rank ^ bit
        parent.append(up if rank else -1)
        low = bit >> 1
        left = rank - low if rank and low else -1
        right = rank + low if low else -1
        while right >= ranks:
            low >>= 1
            right = rank + low if low else -1
        children.append(tuple(child for child in (left, right) if child >= 0))
    return Tree(tuple(parent), tuple(children))


def double_binary_tree(ranks: int) -> tuple[Tree, Tree]:
    """NCCL's two trees (ncclGetDtree): the second is mirrored, or shifted if ranks are odd.

    With an even number of ranks nobody has children in both.
    """
    first = binary_tree(ranks)
    if ranks % 2 == 0:
        return first, first.relabelled([ranks - 1 - rank for rank in range(ranks)])
    return first, first.relabelled([(rank + 1) % ranks for rank in range(ranks)])


def rotated(tree: Tree, root: int) -> Tree:
    """The tree with its ranks moved on so that rank 0's place belongs to ``root``."""
    ranks = len(tree.parent)
    return tree.relabelled([(rank + root) % ranks for rank in range(ranks)])


def over_servers(tree: Tree, gpus_per_server: int, head: int) -> Tree:
    """A tree over servers made one over ranks: inside a server, a chain that ends at one GPU.

    ``head`` is the local rank that the chains end at; its NIC carries the server's traffic.
    """
    parent, children = [], []
    for rank in range(len(tree.parent) * gpus_per_server):
        server, local = divmod(rank, gpus_per_server)
        first = server * gpus_per_server
        distance = (local - head) % gpus_per_server  # from the head, along the chain
        chain = [first + (local + 1) % gpus_per_server] if distance < gpus_per_server - 1 else []
        if distance:
            parent.append(first + (local - 1) % gpus_per_server)
            children.append(tuple(chain))
            continue
        up = tree.parent[server]
        parent.append(up * gpus_per_server + head if up >= 0 else -1)
        below = [child * gpus_per_server + head for child in tree.children[server]]
        children.append(tuple(chain + below))
    return Tree(tuple(parent), tuple(children))
