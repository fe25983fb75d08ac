"""The token ids of a model's logits, if it does not compute all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LogitColumns(NamedTuple):
    """The token ids of the columns of logits, ascending, among all ids of the vocabulary."""

    token_ids: Tensor  # [columns] int64
    num_ids: int

    def spread(self, logits: Tensor) -> Tensor:
        """Return logits [R, columns] as those of all ids, [R, num_ids]: -inf for the others."""
        every = logits.new_full((len(logits), self.num_ids), -torch.inf)
        return every.index_copy_(1, self.token_ids, logits)
