"""Measures how far argmax drafts agree with held-out answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.pairs.factory.blocks import (
    causal_states,
    full_states,
    hidden_states,
    masked_tokens,
    place_aligned_blocks,
    place_blocks,
    place_full_drafts,
)
from diffuspec.pairs.factory.examples import Batch


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Shares of drafts whose first 1, 2, ... tokens were all right."""

    right_by_position: tuple[float, ...]
    num_drafts: int

    @property
    def mean(self) -> float:
        """Committed tokens per step, bonus included."""
        return 1 + sum(self.right_by_position)

    def __str__(self) -> str:
        shares = " ".join(f"{share:.0%}" for share in self.right_by_position[:6])
        return f"acceptance {self.mean:.2f}, right so far by position: {shares}"


@torch.inference_mode()
def measure_acceptance(
    model: Any,
    batches: Sequence[Batch],
    settings: DiffusionSettings | None,
    length: int,
    probes: int = 10,
) -> Acceptance:
    """Draft `length` tokens at evenly spaced places of each answer, `probes` per sequence.

    They are drafted together, in place of masks; if `settings` is None, one by one.
    """
    right = [_right_so_far(model, batch, settings, length, probes) for batch in batches]
    flags = torch.cat([one.flatten(0, 1) for one in right]).float()  # [drafts, length]
    return Acceptance(tuple(flags.mean(0).tolist()), len(flags))


def _right_so_far(
    model: Any, batch: Batch, settings: DiffusionSettings | None, length: int, probes: int
) -> torch.Tensor:
    """Return for each draft and position whether all its tokens up to there are right.

    When drafting one by one, a token only counts if those before it are right, so the answer's own
    rows show what would be drafted.
    """
    token_ids = batch.token_ids
    spread = torch.linspace(0.0, 0.9, probes, device=token_ids.device)
    places = [torch.nonzero(row).squeeze(1) for row in batch.is_answer]
    starts = torch.stack([place[(spread * len(place)).long()] for place in places])
    size = 1 if settings is None else settings.block_size
    if settings is not None and settings.attention == "full":
        blocks = place_full_drafts(batch, starts, length)
    elif settings is not None and settings.attention == "block_aligned":
        blocks = place_aligned_blocks(batch, starts, -(-(size - 1 + length) // size), size)
    else:
        blocks = place_blocks(batch, starts, length)
    num_tokens = token_ids.shape[1]
    if settings is None:
        hidden = causal_states(model, token_ids)
        block_rows = _rows(hidden, blocks.positions.clamp(max=num_tokens - 1))
    else:
        masks = masked_tokens(batch, blocks, settings.mask_token_id)
        if settings.attention == "full":
            hidden = full_states(model, token_ids, blocks, masks)
            right: torch.Tensor = model.get_output_embeddings()(hidden).argmax(-1) == blocks.labels
            return right.view(*starts.shape, -1)[..., :length].long().cumprod(-1)
        hidden = hidden_states(model, token_ids, blocks, masks)
        block_rows = hidden[:, num_tokens:]
    head = model.get_output_embeddings()
    first = head(_rows(hidden, starts - 1)).argmax(-1) == token_ids.gather(1, starts)
    rest = (head(block_rows).argmax(-1) == blocks.labels).unflatten(1, (probes, -1))  # [B, S, M]
    # A token is predicted by the row before it: the text's last row, if no row of the draft is
    # before it.
    rows = (starts % size - 1)[:, :, None] + torch.arange(length, device=starts.device)
    found = rest.gather(2, rows.clamp(min=0))
    return torch.where(rows < 0, first[:, :, None], found).long().cumprod(-1)


def _rows(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Select rows, [B, R], of hidden states, [B, N, H]."""
    return hidden.gather(1, rows[:, :, None].expand(-1, -1, hidden.shape[-1]))
