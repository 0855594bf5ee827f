"""How many bytes of tokens each rank of an expert parallel group sends to each other."""

from __future__ import annotations

from traffic.plan_builder import draw_uniform


def token_matrix(
    members: int, total: int, *, imbalance: float, seed: int, labels: tuple[int | str, ...]
) -> list[list[int]]:
    """``matrix[i][j]`` bytes from member i to the experts of member j; every row adds to ``total``.

    Experts are popular to different degrees, the same for all senders: with weights drawn from
    1 - imbalance to 1 + imbalance. Remainders go to the first columns.
    """
    weights = [
        1 + imbalance * (2 * draw_uniform(seed, "experts", *labels, j) - 1) for j in range(members)
    ]
    shares = [weight / sum(weights) for weight in weights]
    row = [int(total * share) for share in shares]
    for j in range(total - sum(row)):
        row[j % members] += 1
    return [list(row) for _ in range(members)]


def transposed(matrix: list[list[int]]) -> list[list[int]]:
    """The way back: who sent i bytes gets them again."""
    return [list(column) for column in zip(*matrix, strict=True)]
