"""Shapes of transformers: how many parameters they have and how many FLOPs a token costs.

Biases and normalisations are left out, below 0.1 % of the parameters.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


class TrainingError(ValueError):
    """A training job does not fit; the message names the field, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer.

    ``kv_heads`` below ``heads`` is grouped-query attention. A ``gated`` feed-forward part
    (SwiGLU) has three matrices instead of two. With ``experts`` every layer's feed-forward part
    exists that often, and a token visits ``experts_per_token``. ``vocabulary`` 0 leaves the
    embeddings out. Raises TrainingError.
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int
    gated: bool = True
    tied_embeddings: bool = False
    experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "vocabulary" else 1
            if not isinstance(value, bool) and value < least:
                raise TrainingError(f"{field.name}: {value}; at least {least}")
        for name, value, divisor, of in (
            ("hidden", self.hidden, self.heads, "heads"),
            ("heads", self.heads, self.kv_heads, "kv_heads"),
        ):
            if value % divisor:
                raise TrainingError(f"{name}: {value}; allowed: multiples of {of}, {divisor}")
        if self.experts_per_token > self.experts:
            raise TrainingError(
                f"experts_per_token: {self.experts_per_token}; at most {self.experts}"
            )

    @property
    def attention_parameters(self) -> int:
        """Of one layer: queries and output, keys and values."""
        return 2 * self.hidden**2 + 2 * self.hidden * (self.hidden // self.heads * self.kv_heads)

    @property
    def expert_parameters(self) -> int:
        """Of one layer's feed-forward part, of one expert if there are several."""
        return (3 if self.gated else 2) * self.hidden * self.feed_forward

    @property
    def router_parameters(self) -> int:
        """Of one layer's choice of experts."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def embedding_parameters(self) -> int:
        """Of one table, tokens to vectors or back."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        layer = self.attention_parameters + self.router_parameters
        layer += self.experts * self.expert_parameters
        tables = 1 if self.tied_embeddings else 2
        return self.layers * layer + tables * self.embedding_parameters

    def attention_flops(self, tokens: int) -> float:
        """Forward FLOPs of one layer's attention: its matrices, and scores with values.

        The second term is 4 * sequence * hidden per token, without the saving that a causal mask
        allows (Narayanan et al., SC'21, section 5.1).
        """
        return tokens * (2.0 * self.attention_parameters + 4.0 * self.sequence * self.hidden)

    def feed_forward_flops(self, tokens: int) -> float:
        """Forward FLOPs of one layer's feed-forward part, of all experts that a token visits."""
        per_token = self.experts_per_token * self.expert_parameters + self.router_parameters
        return 2.0 * tokens * per_token

    def logits_flops(self, tokens: int) -> float:
        """Forward FLOPs of the table that turns vectors into tokens."""
        return 2.0 * tokens * self.embedding_parameters

    def iteration_flops(self, tokens: int) -> float:
        """Forward and backward, which costs twice as much; about 6 * parameters * tokens."""
        layer = self.attention_flops(tokens) + self.feed_forward_flops(tokens)
        return 3 * (self.layers * layer + self.logits_flops(tokens))
