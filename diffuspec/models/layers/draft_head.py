"""A drafter's head over some token ids: reading the weights of rare tokens does not pay.

Zhao et al., "FR-Spec" (2025), draft only tokens that are frequent in a corpus. A drafter's weights
name them as `head_token_ids`; it drafts no others. The decoded text does not change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffuspec.core.errors import ModelLoadError

HEAD_TOKEN_IDS = "head_token_ids"  # name of a weight tensor: int32, ascending


class LogitColumns(NamedTuple):
    """The token ids of the columns of logits, ascending, and the size of the vocabulary."""

    token_ids: Tensor  # [columns] int64
    num_ids: int

    def spread(self, logits: Tensor) -> Tensor:
        """Expand logits [R, columns] to all ids, [R, num_ids], with -inf for the others."""
        every = logits.new_full((len(logits), self.num_ids), -torch.inf)
        return every.index_copy_(1, self.token_ids, logits)


class DraftHead(nn.Module):
    """Computes the logits of some token ids, [..., ids]."""

    token_ids: Tensor

    def __init__(self, head: nn.Linear, token_ids: Tensor) -> None:
        super().__init__()
        weight = head.weight.detach()
        has_bias = head.bias is not None
        options = {"device": weight.device, "dtype": weight.dtype}
        self.rows = nn.Linear(weight.shape[1], len(token_ids), has_bias, **options)
        self.register_buffer("token_ids", token_ids.to(weight.device, torch.long))
        self._num_ids = len(weight)
        with torch.no_grad():
            self.rows.weight.copy_(weight[self.token_ids])
            if has_bias:
                self.rows.bias.copy_(head.bias[self.token_ids])

    @property
    def columns(self) -> LogitColumns:
        """The columns of its logits, on its present device."""
        return LogitColumns(self.token_ids, self._num_ids)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.rows(hidden)
        return logits


def logit_columns(model: Any) -> LogitColumns | None:
    """Return the columns of a model's logits; None: one for each token id."""
    head = model.get_output_embeddings()
    return head.columns if isinstance(head, DraftHead) else None


def use_draft_head(model: Any, token_ids: Tensor, path: Path) -> None:
    """Make a model compute only the logits of these ids. Raises ModelLoadError for invalid ids."""
    head = model.get_output_embeddings()
    is_list = token_ids.ndim == 1 and len(token_ids) > 0 and not token_ids.is_floating_point()
    if not (
        is_list
        and bool((token_ids.diff() > 0).all())
        and 0 <= int(token_ids[0]) <= int(token_ids[-1]) < len(head.weight)
    ):
        raise ModelLoadError(
            f"{path}: {HEAD_TOKEN_IDS} must be ascending token ids below {len(head.weight)}"
        )
    model.set_output_embeddings(DraftHead(head, token_ids))
