"""How Hydra heads are trained: each guesses the token after those that it is given."""

from __future__ import annotations

from typing import Any

import torch

from diffuspec.models.heads.hydra import HydraHeads
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.pairs.factory.heads.learner import Rows, ahead, guesses_loss, right_guesses
from diffuspec.pairs.factory.loss import Head

NUM_HEADS = 4


class HydraLearner:
    """A Learner: grounded heads that share the target's own."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, layers: TargetLayers, num_blocks: int) -> None:
        self._layers = layers
        self._num_blocks = num_blocks
        self.module = HydraHeads(NUM_HEADS, num_blocks, layers.hidden_size, None)

    def config(self) -> dict[str, Any]:
        return {
            "hydra_num_heads": NUM_HEADS,
            "hydra_num_layers": self._num_blocks,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
        }

    def loss(self, rows: Rows, head: Head) -> torch.Tensor:
        return guesses_loss(rows, head, NUM_HEADS, self._output)

    def right(self, rows: Rows) -> torch.Tensor:
        return right_guesses(rows, self._layers, self._output)

    def _output(self, rows: Rows, place: int, kept: torch.Tensor) -> torch.Tensor:
        """Return what a head makes of rows and of the true tokens before the one it guesses."""
        before = [ahead(rows.batch.token_ids, step)[kept] for step in range(1, place + 2)]
        embedded = [self._layers.embed(ids) for ids in before]
        inputs = torch.cat([rows.states[kept], *embedded], dim=-1)
        output: torch.Tensor = self.module(place, inputs)
        return output
