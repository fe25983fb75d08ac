"""How Medusa heads are trained: each guesses the token some places on by itself."""

from __future__ import annotations

from typing import Any

import torch

from diffuspec.models.heads.medusa import MedusaHeads
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.pairs.factory.heads.learner import (
    NUM_GUESSES,
    Rows,
    ahead,
    right_tokens,
    token_loss,
    weighted,
)
from diffuspec.pairs.factory.loss import Head

NUM_HEADS = 4


class MedusaLearner:
    """A Learner: heads that share the target's own."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, layers: TargetLayers, num_blocks: int) -> None:
        self._layers = layers
        self._heads = MedusaHeads(NUM_HEADS, num_blocks, layers.hidden_size, None)
        self._num_blocks = num_blocks
        self.module = self._heads.heads

    def config(self) -> dict[str, Any]:
        return {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": self._num_blocks}

    def loss(self, rows: Rows, head: Head) -> torch.Tensor:
        losses = []
        for place, module in enumerate(self.module):
            kept = rows.wanted(place + 2)
            labels = ahead(rows.batch.token_ids, place + 2)[kept]
            losses.append(token_loss(head, module(rows.states[kept]), labels))
        return weighted(losses)

    def right(self, rows: Rows) -> torch.Tensor:
        kept, found = rows.wanted(NUM_GUESSES + 1), []
        for place in range(NUM_GUESSES):
            wanted = ahead(rows.batch.token_ids, place + 2)[kept]
            output = self.module[place](rows.states[kept])
            found.append(right_tokens(self._layers.head, output, wanted))
        return torch.stack(found, dim=-1)
