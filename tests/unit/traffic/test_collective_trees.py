"""Trees: NCCL's construction, to the letter, and what it promises."""

from __future__ import annotations

import pytest

from traffic.collectives.trees import (
    Tree,
    binary_tree,
    double_binary_tree,
    over_servers,
    rotated,
)

# (up, children) of every rank for n = 8, from a port of NCCL's trees.cc
FIRST = [
    (-1, (4,)), (2, ()), (4, (1, 3)), (2, ()), (0, (2, 6)), (6, ()), (4, (5, 7)), (6, ()),
]  # fmt: skip
SECOND = [
    (1, ()), (3, (2, 0)), (1, ()), (7, (5, 1)), (5, ()), (3, (6, 4)), (5, ()), (-1, (3,)),
]  # fmt: skip


def check(tree: Tree) -> None:
    """Parents and children agree, and the root reaches everybody once."""
    ranks = len(tree.parent)
    assert sorted(tree.top_down()) == list(range(ranks))
    for rank in range(ranks):
        assert all(tree.parent[child] == rank for child in tree.children[rank])
        assert rank == tree.root or rank in tree.children[tree.parent[rank]]


def test_eight_ranks_as_in_nccl():
    first, second = double_binary_tree(8)
    assert list(zip(first.parent, first.children, strict=True)) == FIRST
    assert list(zip(second.parent, second.children, strict=True)) == SECOND


@pytest.mark.parametrize("ranks", range(2, 257))
def test_double_binary_tree(ranks):
    trees = double_binary_tree(ranks)
    for tree in trees:
        check(tree)
        assert all(len(children) <= 2 for children in tree.children)
        assert tree.depth <= ranks.bit_length()
    assert [tree.root for tree in trees] == [0, ranks - 1 if ranks % 2 == 0 else 1]
    both = [rank for rank in range(ranks) if all(tree.children[rank] for tree in trees)]
    if ranks % 2 == 0:
        assert both == []


def test_an_odd_number_of_ranks_may_have_inner_ranks_in_both():
    first, second = double_binary_tree(13)
    assert any(first.children[rank] and second.children[rank] for rank in range(13))


@pytest.mark.parametrize("root", range(7))
def test_rotated_trees_have_any_root(root):
    tree = rotated(binary_tree(7), root)
    check(tree)
    assert tree.root == root
    assert tree.depth == binary_tree(7).depth


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_chains_inside_servers(servers, gpus):
    for head in range(gpus):
        tree = over_servers(binary_tree(servers), gpus, head)
        check(tree)
        assert tree.root == head
        between = [
            (rank, parent)
            for rank, parent in enumerate(tree.parent)
            if parent >= 0 and rank // gpus != parent // gpus
        ]
        # servers are connected on one rail only, by as many edges as a tree needs
        assert len(between) == servers - 1
        assert all(rank % gpus == parent % gpus == head for rank, parent in between)
        assert tree.depth == binary_tree(servers).depth + gpus - 1
