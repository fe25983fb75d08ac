"""The rows that a diffusion drafter is trained on.

One pass trains both kinds of rows. Clean rows are those of the text. Masked rows are at the
positions of a draft, attend to the clean tokens before it and to each other, and predict the token
after their own (the shift). Drafts start at random places in an answer and have random lengths.

- Block-causal: clean rows are causal and predict the next token, as the last prefix row does when
  drafting. A draft is one block.
- With blocks aligned to multiples of their size: all rows see their own block and the earlier ones.
  A draft is some whole blocks; the first one begins with rows of known text.
- Full: every row sees the whole text before the draft and all of its masks, so each draft has a
  sequence of its own. The row of the last known token predicts the first one of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from diffuspec.pairs.factory.examples import Batch


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rows of the drafts in a batch: [B, M] each, M = drafts x rows of a draft."""

    positions: torch.Tensor  # position of the row in its sequence
    block_ids: torch.Tensor  # number of the row's draft
    starts: torch.Tensor  # number of clean tokens to which the row attends
    ends: torch.Tensor  # the row attends to rows of its draft at positions below this
    labels: torch.Tensor  # the token after the row's own; -1: none
    offsets: torch.Tensor  # index of the label in the draft, or of the row in a block
    is_known: torch.Tensor  # whether the row is text before the draft
    size: int = 1  # tokens in an aligned block: clean rows attend up to the end of their block


def place_blocks(batch: Batch, starts: torch.Tensor, length: int) -> Blocks:
    """Return blocks of one length at starts [B, S]; labels end with the block's first answer."""
    offsets = torch.arange(length, device=starts.device).repeat(starts.shape[1])
    offsets = offsets.expand(len(starts), -1)
    row_starts = starts.repeat_interleave(length, dim=1)
    positions = row_starts + offsets
    return Blocks(
        positions,
        _ids(starts, length),
        row_starts,
        row_starts + length,
        _labels(batch, positions, row_starts),
        offsets,
        torch.zeros_like(positions, dtype=torch.bool),
    )


def place_aligned_blocks(batch: Batch, starts: torch.Tensor, num_blocks: int, size: int) -> Blocks:
    """Return drafts from starts [B, S] to the end of num_blocks blocks."""
    length = num_blocks * size
    rows = torch.arange(length, device=starts.device).repeat(starts.shape[1])
    row_starts = starts.repeat_interleave(length, dim=1)
    first = row_starts // size * size
    positions = first + rows
    labels = _labels(batch, positions, row_starts)
    return Blocks(
        positions,
        _ids(starts, length),
        first,
        (positions // size + 1) * size,
        torch.where(positions < row_starts - 1, -1, labels),
        (positions + 1 - row_starts).clamp(min=0),
        positions < row_starts,
        size,
    )


def place_full_drafts(batch: Batch, starts: torch.Tensor, length: int) -> Blocks:
    """Return drafts of one length at starts [B, S], each with the row of the token before it."""
    rows = torch.arange(length + 1, device=starts.device).repeat(starts.shape[1])
    offsets = rows.expand(len(starts), -1)
    row_starts = starts.repeat_interleave(length + 1, dim=1)
    positions = row_starts - 1 + offsets
    return Blocks(
        positions,
        _ids(starts, length + 1),
        row_starts,
        row_starts + length,
        torch.where(offsets < length, _labels(batch, positions, row_starts), -1),
        offsets,
        offsets == 0,
    )


def _ids(starts: torch.Tensor, length: int) -> torch.Tensor:
    ids = torch.arange(starts.shape[1], device=starts.device).repeat_interleave(length)
    return ids.expand(len(starts), -1)


def _labels(batch: Batch, positions: torch.Tensor, row_starts: torch.Tensor) -> torch.Tensor:
    """Return the tokens after positions; -1 beyond the answer in which a draft begins."""
    token_ids, is_answer = batch.token_ids, batch.is_answer
    num_tokens = token_ids.shape[1]
    # An answer's id is the number of non-answer tokens before it.
    answer_ids = torch.where(is_answer, (~is_answer).cumsum(-1), -1)
    after = (positions + 1).clamp(max=num_tokens - 1)
    inside = positions + 1 < num_tokens
    same = answer_ids.gather(1, after) == answer_ids.gather(1, row_starts)
    return torch.where(inside & same, token_ids.gather(1, after), -1)


def masked_tokens(batch: Batch, blocks: Blocks, mask_token_id: int) -> torch.Tensor:
    """Return the tokens of the blocks' rows: known text, then masks."""
    last = batch.token_ids.shape[1] - 1
    own = batch.token_ids.gather(1, blocks.positions.clamp(max=last))
    return torch.where(blocks.is_known, own, mask_token_id)


def causal_states(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the hidden states of clean rows, [B, N, H], without other rows."""
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=token_ids, use_cache=False
    ).last_hidden_state
    return hidden


def hidden_states(
    model: Any, token_ids: torch.Tensor, blocks: Blocks, block_ids: torch.Tensor
) -> torch.Tensor:
    """Return the hidden states of the clean rows and then the block rows, [B, N + M, H]."""
    size, num_tokens = token_ids.shape
    num_rows, device = blocks.positions.shape[1], token_ids.device
    clean = torch.arange(num_tokens, device=device)
    total = num_tokens + num_rows
    visible = torch.zeros(size, total, total, dtype=torch.bool, device=device)
    visible[:, :num_tokens, :num_tokens] = clean[:, None] // blocks.size >= clean // blocks.size
    visible[:, num_tokens:, :num_tokens] = clean < blocks.starts[:, :, None]
    same_draft = blocks.block_ids[:, :, None] == blocks.block_ids[:, None]
    before_end = blocks.positions[:, None] < blocks.ends[:, :, None]
    visible[:, num_tokens:, num_tokens:] = same_draft & before_end
    positions = torch.cat([clean.expand(size, -1), blocks.positions], 1)
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=torch.cat([token_ids, block_ids], 1),
        position_ids=positions,
        attention_mask=_masks(model.config, visible, positions),
        use_cache=False,
    ).last_hidden_state
    return hidden


def full_states(
    model: Any, token_ids: torch.Tensor, drafts: Blocks, draft_ids: torch.Tensor
) -> torch.Tensor:
    """Return the hidden states of the drafts' rows, [B, M, H], where every row sees all others.

    draft_ids: the tokens of these rows, [B, M].
    """
    num_drafts = int(drafts.block_ids.max()) + 1
    ends = drafts.ends.view(len(token_ids) * num_drafts, -1)[:, :1]  # [B * S, 1]
    num_columns = int(ends.max())
    padding = max(num_columns - token_ids.shape[1], 0)
    texts = torch.nn.functional.pad(token_ids, (0, padding))[:, :num_columns]
    rows = drafts.positions.view(len(ends), -1)
    texts = texts.repeat_interleave(num_drafts, 0).scatter(1, rows, draft_ids.view_as(rows))
    columns = torch.arange(num_columns, device=token_ids.device).expand(len(ends), -1)
    visible = (columns < ends)[:, None].expand(-1, num_columns, -1)
    hidden: torch.Tensor = model.get_decoder()(
        input_ids=texts,
        position_ids=columns,
        attention_mask=_masks(model.config, visible, columns),
        use_cache=False,
    ).last_hidden_state
    found = hidden.gather(1, rows[:, :, None].expand(-1, -1, hidden.shape[-1]))
    return found.view(*drafts.positions.shape, -1)


def _masks(config: Any, visible: torch.Tensor, positions: torch.Tensor) -> Any:
    """Return the mask of all layers, or one for each type of layer if types differ."""
    window = window_of(config)
    if window is None:
        return scores(visible)
    near = positions[:, :, None] - positions[:, None] < window
    return by_layer_type(scores(visible), scores(visible & near))


def window_of(config: Any) -> int | None:
    """Return how many positions the layers with a sliding window see; None: there are none."""
    types = getattr(config, "layer_types", None) or ()
    return getattr(config, "sliding_window", None) if "sliding_attention" in types else None


def by_layer_type(whole: Any, near: Any) -> dict[str, Any]:
    """Return the masks of layers that see everything, and of those with a sliding window."""
    return {"full_attention": whole, "sliding_attention": near}


def scores(visible: torch.Tensor) -> torch.Tensor:
    """Return the terms that a mask [B, N, N] adds to attention scores [B, heads, N, N]."""
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[:, None]
