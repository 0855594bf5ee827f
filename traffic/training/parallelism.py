"""How a job's ranks share the model: tensor, pipeline, data and expert parallelism.

Ranks are numbered as Megatron-LM numbers them, tensor parallel ones first, so that they lie in
one server; the order of the other two is a choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from traffic.training.shape import TrainingError


class RankOrder(StrEnum):
    """Which coordinate changes fastest after the tensor parallel one."""

    TP_DP_PP = "tp-dp-pp"
    """Megatron-LM's default."""
    TP_PP_DP = "tp-pp-dp"
    """Llama 3's (arXiv 2407.21783, section 3.3.2)."""


class Sharding(StrEnum):
    """What the ranks of a data parallel group keep only a part of."""

    NONE = "none"
    """Nothing: gradients are all-reduced."""
    OPTIMIZER = "optimizer"
    """Optimizer states (ZeRO-1): gradients are reduce-scattered, new parameters all-gathered."""
    FULL = "full"
    """Parameters too (ZeRO-3, FSDP): layers are all-gathered before they are used."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place."""

    tp: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the groups; experts are spread over ``ep`` ranks of a data parallel group.

    Raises TrainingError.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    order: RankOrder = RankOrder.TP_DP_PP
    sharding: Sharding = Sharding.NONE

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name}: {getattr(self, name)}; at least 1")
        if self.dp % self.ep:
            raise TrainingError(f"ep: {self.ep}; allowed: divisors of dp, {self.dp}")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank is."""
        rest, tp = divmod(rank, self.tp)
        if self.order is RankOrder.TP_DP_PP:
            pp, dp = divmod(rest, self.dp)
        else:
            dp, pp = divmod(rest, self.pp)
        return Coordinates(tp, dp, pp)

    def rank(self, tp: int, dp: int, pp: int) -> int:
        """The rank at a place."""
        if self.order is RankOrder.TP_DP_PP:
            return tp + self.tp * (dp + self.dp * pp)
        return tp + self.tp * (pp + self.pp * dp)

    def groups(self) -> dict[str, tuple[int, ...]]:
        """All groups of two or more by name; the names are those of the functions below."""
        found: dict[str, tuple[int, ...]] = {}
        for rank in range(self.world_size):
            c = self.coordinates(rank)
            block, place = divmod(c.dp, self.ep)
            replicas = range(self.dp)
            for name, members in (
                (self.tp_group(c), [self.rank(t, c.dp, c.pp) for t in range(self.tp)]),
                (self.dp_group(c), [self.rank(c.tp, d, c.pp) for d in replicas]),
                (
                    self.ep_group(c),
                    [self.rank(c.tp, block * self.ep + e, c.pp) for e in range(self.ep)],
                ),
                (
                    self.expert_dp_group(c),
                    [self.rank(c.tp, d, c.pp) for d in replicas[place :: self.ep]],
                ),
                (
                    self.embedding_group(c),
                    [self.rank(c.tp, c.dp, s) for s in sorted({0, self.pp - 1})],
                ),
            ):
                if len(members) > 1:
                    found.setdefault(name, tuple(members))
        return found

    def tp_group(self, c: Coordinates) -> str:
        """Ranks that share each layer."""
        return f"tp-dp{c.dp}-pp{c.pp}"

    def dp_group(self, c: Coordinates) -> str:
        """Ranks with the same part of the model."""
        return f"dp-tp{c.tp}-pp{c.pp}"

    def ep_group(self, c: Coordinates) -> str:
        """Ranks that together have all experts."""
        return f"ep-tp{c.tp}-pp{c.pp}-block{c.dp // self.ep}"

    def expert_dp_group(self, c: Coordinates) -> str:
        """Ranks with the same experts; the data parallel group if experts are not spread."""
        if self.ep == 1:
            return self.dp_group(c)
        return f"expert-dp-tp{c.tp}-pp{c.pp}-expert{c.dp % self.ep}"

    def embedding_group(self, c: Coordinates) -> str:
        """First and last stage, which both hold tied embeddings."""
        return f"embedding-tp{c.tp}-dp{c.dp}"
