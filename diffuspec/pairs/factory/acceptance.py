"""How far argmax drafts agree with held-out answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from diffuspec.pairs.factory.blocks import hidden_states, place_blocks
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
    model: Any, batches: Sequence[Batch], mask_token_id: int, length: int, probes: int = 10
) -> Acceptance:
    """Draft `length` tokens at evenly spread places of each answer, `probes` a sequence."""
    right = [_right_so_far(model, batch, mask_token_id, length, probes) for batch in batches]
    flags = torch.cat([one.flatten(0, 1) for one in right]).float()  # [drafts, length]
    return Acceptance(tuple(flags.mean(0).tolist()), len(flags))


def _right_so_far(
    model: Any, batch: Batch, mask_token_id: int, length: int, probes: int
) -> torch.Tensor:
    """Return for each draft and position whether all its tokens up to there are right."""
    token_ids = batch.token_ids
    spread = torch.linspace(0.0, 0.9, probes, device=token_ids.device)
    places = [torch.nonzero(row).squeeze(1) for row in batch.is_answer]
    starts = torch.stack([place[(spread * len(place)).long()] for place in places])
    blocks = place_blocks(batch, starts, length)
    masks = torch.full_like(blocks.positions, mask_token_id)
    hidden = hidden_states(model, token_ids, blocks, masks)
    head = model.get_output_embeddings()
    first_rows = (starts - 1)[:, :, None].expand(-1, -1, hidden.shape[-1])
    first = head(hidden.gather(1, first_rows)).argmax(-1) == token_ids.gather(1, starts)
    rest = head(hidden[:, token_ids.shape[1] :]).argmax(-1) == blocks.labels  # [B, M]
    rest = rest.unflatten(1, (probes, length))
    return torch.cat([first[:, :, None], rest[:, :, :-1]], 2).long().cumprod(-1)
