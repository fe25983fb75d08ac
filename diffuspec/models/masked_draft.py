"""One request's draft while a diffusion LM is generating it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.core.types import DraftRequest, TokenIds


@dataclass(slots=True, eq=False)
class MaskedDraft:
    """One request of a batch and the state of its block."""

    request: DraftRequest
    prefix: TokenIds  # the request's prefix, cut on the left to the model's context
    block: TokenIds  # [k], masks, and tokens filled in by refinement
    logits: torch.Tensor | None = None  # [k, V], each row from the last pass with a mask there
    is_masked: NDArray[np.bool_] | None = None  # [k]; None: all positions are masked
    num_refreshed: int = 0  # cached rows of the prefix computed again

    def update(self, logits: torch.Tensor) -> None:
        """Take the logits of a pass."""
        if self.logits is not None and self.is_masked is not None:
            still_masked = torch.from_numpy(self.is_masked).to(logits.device)
            logits = torch.where(still_masked[:, None], logits, self.logits)
        self.logits = logits

    def fix_most_confident(self, count: int, block_size: int | None) -> None:
        """Replace `count` masks by their likeliest tokens, most confident first.

        If a model sees text in blocks of block_size tokens, masks of earlier blocks come first.
        """
        assert self.logits is not None
        size = len(self.block)
        if self.is_masked is None:
            self.is_masked = np.ones(size, np.bool_)
        logprobs, token_ids = self.logits.log_softmax(dim=-1).max(dim=-1)
        positions = len(self.prefix) + np.arange(size)
        blocks = positions // block_size if block_size else np.zeros(size)
        order = np.lexsort((-logprobs.cpu().numpy(), blocks, ~self.is_masked))
        chosen = order[: min(count, int(self.is_masked.sum()))]
        self.block[chosen] = token_ids.cpu().numpy()[chosen]
        self.is_masked[chosen] = False
