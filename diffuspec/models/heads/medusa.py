"""Medusa heads: each guesses one of the next tokens from the target's last hidden state.

Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (arXiv
2401.10774). Head i is a few residual blocks, x + SiLU(Wx + b), and a linear layer to the
vocabulary; it guesses the token i + 1 positions after that of the target's own head. It reads the
checkpoints of FasterDecoding/Medusa: `medusa_lm_head.pt`, or the same tensors as safetensors. Those
without the linear layers share the target's head.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.nodes import Candidates, Place, likeliest_after
from diffuspec.models.heads.target_layers import TargetLayers, by_padded_rows

PICKLED = ("medusa_lm_head.pt",)


class ResidualBlock(nn.Module):
    """R(x) + SiLU(Wx + b); R is linear if the input is wider than the output, otherwise x."""

    def __init__(self, hidden_size: int, num_inputs: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs * hidden_size, hidden_size)
        if num_inputs > 1:
            self.res_connection = nn.Linear(num_inputs * hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)  # an untrained block returns its residual
        self._is_wide = num_inputs > 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        residual = self.res_connection(inputs) if self._is_wide else inputs
        return residual + functional.silu(self.linear(inputs))


class MedusaHeads(nn.Module):
    """The heads alone; the tensors of `heads` have the checkpoint's names."""

    def __init__(
        self, num_heads: int, num_blocks: int, hidden_size: int, vocab_size: int | None
    ) -> None:
        """vocab_size: None: share the target's head."""
        super().__init__()
        heads = []
        for _ in range(num_heads):
            blocks: list[nn.Module] = [ResidualBlock(hidden_size) for _ in range(num_blocks)]
            if vocab_size is not None:
                blocks.append(nn.Linear(hidden_size, vocab_size, bias=False))
            heads.append(nn.Sequential(*blocks))
        self.heads = nn.ModuleList(heads)
        self.shares_head = vocab_size is None  # the target's head computes the logits

    @classmethod
    def load(cls, path: Path, target: TargetLayers) -> Self:
        """Load a checkpoint that was trained for the target. Raises ModelLoadError."""
        checkpoint = HeadCheckpoint.read(path, PICKLED)
        num_heads = checkpoint.number("medusa_num_heads", default=4)
        num_blocks = checkpoint.number("medusa_num_layers", default=1)
        is_own = f"0.{num_blocks}.weight" in checkpoint.weights
        vocab_size = target.vocab_size if is_own else None
        model = cls(num_heads, num_blocks, target.hidden_size, vocab_size)
        checkpoint.fill(model.heads)
        return target.place(model)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map hidden states, [B, H], to each head's output, [B, num_heads, V or H]."""
        return torch.stack([head(states) for head in self.heads], dim=1)


class MedusaDraftModel:
    """Medusa heads beside their target."""

    def __init__(self, heads: MedusaHeads, layers: TargetLayers, target: TargetInfo) -> None:
        self._heads = heads
        self._layers = layers
        self._target = target

    @torch.inference_mode()
    def candidates(
        self, requests: Sequence[DraftRequest], states: Sequence[torch.Tensor], count: int
    ) -> list[list[Candidates]]:
        """Return the `count` likeliest tokens of every head, for each request.

        states: the hidden state of each prefix's last token but one, [H].
        """
        outputs = by_padded_rows(self._heads, torch.stack(list(states)))
        num_heads, rows = outputs.shape[1], outputs.flatten(0, 1)
        logits = self._layers.logits(rows) if self._heads.shares_head else rows
        places = [
            Place(request, len(request.prefix) + head, ())
            for request in requests
            for head in range(num_heads)
        ]
        found = likeliest_after(logits, places, self._target, count)
        return [found[first : first + num_heads] for first in range(0, len(found), num_heads)]
