"""The head of a checkpoint that does not share the target's, over some or all of the target's ids.

Its tensors are `lm_head.weight`, a row for each id that can be drafted, and `d2t`, the target's ids
minus the numbers of the rows. Without `d2t`, the rows are those of the target's first ids.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.target_layers import TargetLayers, by_padded_rows


class OwnHead(nn.Module):
    """Maps states to logits over the target's ids."""

    token_ids: torch.Tensor  # [columns], the target's id of each column

    def __init__(self, weight: torch.Tensor, token_ids: torch.Tensor, vocab_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.linear.weight = nn.Parameter(weight)
        self.register_buffer("token_ids", token_ids, persistent=False)
        self._vocab_size = vocab_size

    @classmethod
    def read(
        cls, checkpoint: HeadCheckpoint, target: TargetLayers, hidden_size: int
    ) -> Self | None:
        """Read the checkpoint's own head; None if it has none. Raises ModelLoadError."""
        if "lm_head.weight" not in checkpoint.weights:
            return None
        num_columns = len(checkpoint.weights["lm_head.weight"])
        weight = checkpoint.take("lm_head.weight", num_columns, hidden_size)
        ids = torch.arange(num_columns)
        if "d2t" in checkpoint.weights:
            ids = ids + checkpoint.take("d2t", num_columns)
        if not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
            raise ModelLoadError(
                f"{checkpoint.path} was trained for another target: it guesses ids from "
                f"{int(ids.min())} to {int(ids.max())}, the target has {target.vocab_size}"
            )
        return cls(weight, ids, target.vocab_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [R, V] float32 of states [R, H]; -inf for ids without a column."""
        own = by_padded_rows(self.linear, hidden).float()
        logits = own.new_full((len(hidden), self._vocab_size), -torch.inf)
        logits[:, self.token_ids] = own
        return logits
