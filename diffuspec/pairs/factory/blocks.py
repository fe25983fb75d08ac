"""The rows that a block-causal diffusion drafter is trained on.

One pass trains both kinds of rows. Clean rows are causal and predict the next token, as the last
prefix row does when drafting. Masked rows are at the positions of a block, attend to the clean
tokens before it and to all of the block, and predict the token after their own (the shift). Blocks
start at random places of an answer and have random lengths, as drafts do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from diffuspec.pairs.factory.examples import Batch


@dataclass(frozen=True, slots=True)
class Blocks:
    """Masked rows of a batch: [B, M] each, M = blocks x block length."""

    positions: torch.Tensor  # of the row in its sequence
    block_ids: torch.Tensor
    starts: torch.Tensor  # number of clean tokens that the row attends to
    labels: torch.Tensor  # the token after the row's own; -1: none
    offsets: torch.Tensor  # of the row in its block


def place_blocks(batch: Batch, starts: torch.Tensor, length: int) -> Blocks:
    """Return blocks of one length at starts [B, S]; labels end with the block's first answer."""
    token_ids, is_answer = batch.token_ids, batch.is_answer
    size, num_tokens = token_ids.shape
    num_blocks, device = starts.shape[1], token_ids.device
    offsets = torch.arange(length, device=device).repeat(num_blocks).expand(size, -1)
    row_starts = starts.repeat_interleave(length, dim=1)
    positions = row_starts + offsets
    # An answer's id is the number of other tokens before it.
    answer_ids = torch.where(is_answer, (~is_answer).cumsum(-1), -1)
    after = (positions + 1).clamp(max=num_tokens - 1)
    inside = positions + 1 < num_tokens
    same = answer_ids.gather(1, after) == answer_ids.gather(1, row_starts)
    labels = torch.where(inside & same, token_ids.gather(1, after), -1)
    block_ids = torch.arange(num_blocks, device=device).repeat_interleave(length).expand(size, -1)
    return Blocks(positions, block_ids, row_starts, labels, offsets)


def causal_states(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """Return hidden states [B, N, H] of the clean rows, where there are no others."""
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=token_ids, use_cache=False
    ).last_hidden_state
    return hidden


def hidden_states(
    model: Any, token_ids: torch.Tensor, blocks: Blocks, block_ids: torch.Tensor
) -> torch.Tensor:
    """Return hidden states [B, N + M, H] of the clean rows, then of the block rows."""
    size, num_tokens = token_ids.shape
    num_rows, device = blocks.positions.shape[1], token_ids.device
    clean = torch.arange(num_tokens, device=device)
    total = num_tokens + num_rows
    visible = torch.zeros(size, total, total, dtype=torch.bool, device=device)
    visible[:, :num_tokens, :num_tokens] = clean[:, None] >= clean
    visible[:, num_tokens:, :num_tokens] = clean < blocks.starts[:, :, None]
    visible[:, num_tokens:, num_tokens:] = blocks.block_ids[:, :, None] == blocks.block_ids[:, None]
    positions = torch.cat([clean.expand(size, -1), blocks.positions], 1)
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=torch.cat([token_ids, block_ids], 1),
        position_ids=positions,
        attention_mask=_masks(model.config, visible, positions),
        use_cache=False,
    ).last_hidden_state
    return hidden


def _masks(config: Any, visible: torch.Tensor, positions: torch.Tensor) -> Any:
    """Return the mask of all layers, or one for each type of layer where types differ."""
    types, window = (
        getattr(config, "layer_types", None) or (),
        getattr(config, "sliding_window", None),
    )
    if window is None or "sliding_attention" not in types:
        return _scores(visible)
    near = positions[:, :, None] - positions[:, None] < window
    return {"full_attention": _scores(visible), "sliding_attention": _scores(visible & near)}


def _scores(visible: torch.Tensor) -> torch.Tensor:
    """Return the terms that a mask [B, N, N] adds to attention scores [B, heads, N, N]."""
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[:, None]
