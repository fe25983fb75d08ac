"""Trains Medusa's and Hydra's heads; each guesses the token some places further on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from diffuspec.models.heads.hydra import HydraHeads
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


class _GuessLearner(ABC):
    """A Learner: heads that share the target's own head, each for one position."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, layers: TargetLayers, num_blocks: int, module: nn.Module) -> None:
        self._layers = layers
        self._num_blocks = num_blocks
        self.module: Any = module

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the checkpoint's config.json."""

    @abstractmethod
    def _output(self, rows: Rows, place: int, kept: torch.Tensor) -> torch.Tensor:
        """Return a head's output for the rows kept by a mask [B, N], [R, H]."""

    def loss(self, rows: Rows, head: Head) -> torch.Tensor:
        losses = []
        for place in range(NUM_HEADS):
            kept = rows.wanted(place + 2)
            labels = ahead(rows.batch.token_ids, place + 2)[kept]
            losses.append(token_loss(head, self._output(rows, place, kept), labels))
        return weighted(losses)

    def right(self, rows: Rows) -> torch.Tensor:
        kept, found = rows.wanted(NUM_GUESSES + 1), []
        for place in range(NUM_GUESSES):
            wanted = ahead(rows.batch.token_ids, place + 2)[kept]
            output = self._output(rows, place, kept)
            found.append(right_tokens(self._layers.head, output, wanted))
        return torch.stack(found, dim=-1)


class MedusaLearner(_GuessLearner):
    """Heads that guess only from the target's state."""

    def __init__(self, layers: TargetLayers, num_blocks: int) -> None:
        heads = MedusaHeads(NUM_HEADS, num_blocks, layers.hidden_size, None)
        super().__init__(layers, num_blocks, heads.heads)

    def config(self) -> dict[str, Any]:
        return {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": self._num_blocks}

    def _output(self, rows: Rows, place: int, kept: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module[place](rows.states[kept])
        return output


class HydraLearner(_GuessLearner):
    """Grounded heads, which see the true tokens before the guessed one."""

    def __init__(self, layers: TargetLayers, num_blocks: int) -> None:
        heads = HydraHeads(NUM_HEADS, num_blocks, layers.hidden_size, None)
        super().__init__(layers, num_blocks, heads)

    def config(self) -> dict[str, Any]:
        return {
            "hydra_num_heads": NUM_HEADS,
            "hydra_num_layers": self._num_blocks,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
        }

    def _output(self, rows: Rows, place: int, kept: torch.Tensor) -> torch.Tensor:
        before = [ahead(rows.batch.token_ids, step)[kept] for step in range(1, place + 2)]
        embedded = [self._layers.embed(ids) for ids in before]
        inputs = torch.cat([rows.states[kept], *embedded], dim=-1)
        output: torch.Tensor = self.module(place, inputs)
        return output
