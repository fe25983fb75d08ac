"""How Medusa heads are trained: each guesses the token some places on by itself."""

from __future__ import annotations

from typing import Any

import torch

from diffuspec.models.heads.medusa import MedusaHeads
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.pairs.factory.heads.learner import Rows, guesses_loss, right_guesses
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
        return guesses_loss(rows, head, NUM_HEADS, self._output)

    def right(self, rows: Rows) -> torch.Tensor:
        return right_guesses(rows, self._layers, self._output)

    def _output(self, rows: Rows, place: int, kept: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module[place](rows.states[kept])
        return output
