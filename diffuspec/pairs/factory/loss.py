"""The drafter's loss: cross-entropy with the target's tokens and, if known, its probabilities.

Only rows of answers count. The head is the target's own and is not trained. Most of its rows belong
to tokens that hardly ever occur, so computing only the most frequent ones is several times cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from diffuspec.models.loading.families import DiffusionAttention
from diffuspec.pairs.factory.blocks import (
    Blocks,
    causal_states,
    full_states,
    hidden_states,
    masked_tokens,
    place_aligned_blocks,
    place_blocks,
    place_full_drafts,
)
from diffuspec.pairs.factory.examples import Batch, Example
from diffuspec.pairs.factory.head_loss import weighted_cross_entropy

SLICE_ROWS = 8192  # number of rows whose logits are in memory at a time


@dataclass(frozen=True, slots=True)
class LossConfig:
    """The shape of the masked rows, and the weights of rows."""

    mask_token_id: int | None  # None: there are only clean rows
    attention: DiffusionAttention = "block_causal"
    block_size: int = 1  # size of aligned blocks
    min_block: int = 8
    max_block: int = 32
    rows_per_answer_token: float = 1.4  # masked rows for each answer token
    clean_weight: float = 0.5  # weight of a clean row, relative to a masked one
    position_decay: float = 0.97  # a later token only counts if all before it were right
    revealed_share: float = 0.15  # share of batches with some unmasked block tokens
    likely_share: float = 0.5  # weight of the target's probabilities, if known, in the labels


class Head:
    """The model's head, or its rows for some token ids."""

    def __init__(self, model: Any, token_ids: torch.Tensor | None = None) -> None:
        """token_ids: the ids to compute, ascending; None: all."""
        layer = model.get_output_embeddings()
        self._weight, bias = layer.weight.detach(), getattr(layer, "bias", None)
        self._bias = None if bias is None else bias.detach()
        self._index: torch.Tensor | None = None  # [V] -> row, -1 for omitted ids
        self.num_rows = 0  # computed by `loss` so far
        if token_ids is not None:
            token_ids = token_ids.to(self._weight.device)
            self._index = torch.full((len(self._weight),), -1, device=token_ids.device)
            self._index[token_ids] = torch.arange(len(token_ids), device=token_ids.device)
            self._weight = self._weight[token_ids]
            self._bias = None if self._bias is None else self._bias[token_ids]

    def __len__(self) -> int:
        return len(self._weight)

    def loss(
        self, hidden: torch.Tensor, columns: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the cross-entropies of columns [R, n], with shares [R, n]."""
        self.num_rows += len(hidden)
        return weighted_cross_entropy(hidden, self._weight, self._bias, columns, shares)

    def logprobs(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return natural-log probabilities, float32."""
        return linear(hidden, self._weight, self._bias).float().log_softmax(-1)

    def columns(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the columns of token ids in logprobs; -1 for ids without one."""
        return token_ids if self._index is None else self._index[token_ids]

    def cross_entropies(self, logprobs: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return cross-entropies of token ids [R] under logprobs [R, ids]; 0 for omitted ids."""
        return -_pick(logprobs, self.columns(token_ids)[:, None])[:, 0]


def frequent_ids(examples: Iterable[Example], count: int | None) -> torch.Tensor | None:
    """Return the most frequent token ids in answers, ascending; None for all."""
    if count is None:
        return None
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(
            token
            for token, counted in zip(example.token_ids, example.is_answer, strict=True)
            if counted
        )
    return torch.tensor(sorted(token for token, _ in counts.most_common(count)))


def draft_loss(model: Any, batch: Batch, config: LossConfig, head: Head) -> torch.Tensor:
    """Return the weighted mean loss of clean rows plus that of masked rows."""
    if config.mask_token_id is None:
        return _next_token_loss(model, batch, config, head)
    blocks = _draw_blocks(batch, config)
    block_tokens, labels = _mask(batch, blocks, config.mask_token_id, config.revealed_share)
    if config.attention == "full":
        hidden = full_states(model, batch.token_ids, blocks, block_tokens)
        return _full_loss(batch, blocks, labels, hidden, config, head)
    hidden = hidden_states(model, batch.token_ids, blocks, block_tokens)
    num_tokens = batch.token_ids.shape[1]
    is_clean, is_masked = batch.is_answer[:, 1:], labels >= 0
    if blocks.size > 1:  # only the last row of a block does not see the token after it
        places = torch.arange(1, num_tokens, device=is_clean.device)
        is_clean = is_clean & (places % blocks.size == 0)
    rows = torch.cat([hidden[:, : num_tokens - 1][is_clean], hidden[:, num_tokens:][is_masked]])
    wanted = torch.cat([batch.token_ids[:, 1:][is_clean], labels[is_masked]])
    decay = config.position_decay ** blocks.offsets[is_masked]
    num_clean = len(wanted) - len(decay)
    clean = torch.full((num_clean,), config.clean_weight / max(num_clean, 1), device=rows.device)
    weights = torch.cat([clean, decay / decay.sum()])
    likely = _likely_at(batch, is_clean, blocks, is_masked)
    return _weighted_loss(head, config, rows, wanted, weights, *likely)


def _full_loss(
    batch: Batch,
    drafts: Blocks,
    labels: torch.Tensor,
    hidden: torch.Tensor,
    config: LossConfig,
    head: Head,
) -> torch.Tensor:
    """Return the weighted mean loss of drafts' rows with these hidden states, [B, M, H]."""
    is_wanted = labels >= 0
    decay = config.position_decay ** drafts.offsets[is_wanted]
    no_clean = torch.zeros_like(batch.is_answer[:, 1:])
    likely = _likely_at(batch, no_clean, drafts, is_wanted)
    weights = decay / decay.sum()
    return _weighted_loss(head, config, hidden[is_wanted], labels[is_wanted], weights, *likely)


def _weighted_loss(
    head: Head, config: LossConfig, rows: torch.Tensor, wanted: torch.Tensor, *more: torch.Tensor
) -> torch.Tensor:
    """Return the sum of the losses of rows, weighted. more: weights, and the likeliest tokens."""
    weights, *likely = more
    return head.loss(rows, *row_shares(head, wanted, weights, likely, config.likely_share))


def row_shares(
    head: Head,
    wanted: torch.Tensor,
    weights: torch.Tensor,
    likely: Sequence[torch.Tensor],
    likely_share: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the columns that rows [R] learn, and their shares in the loss, [R, n] both.

    likely: ids and probabilities [R, top] of the target's likeliest tokens, or nothing.
    """
    columns, weights = head.columns(wanted)[:, None], weights[:, None]
    if not likely:
        return columns, weights
    top_ids, top_probs = likely
    others = head.columns(top_ids)
    probs = torch.where(others >= 0, top_probs, 0.0)
    probs = probs / probs.sum(-1, keepdim=True).clamp(min=1e-3)
    shares = torch.cat([(1 - likely_share) * weights, likely_share * weights * probs], dim=1)
    return torch.cat([columns, others], dim=1), shares


def in_slices(loss: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of a loss over slices of rows, without keeping intermediate results.

    The logits of a large batch would not fit into memory, so they are recomputed for the gradient.
    """
    if len(rows[0]) <= SLICE_ROWS:
        return loss(*rows)
    slices = zip(*(torch.split(one, SLICE_ROWS) for one in rows), strict=True)
    losses: list[torch.Tensor] = [checkpoint(loss, *one, use_reentrant=False) for one in slices]
    return torch.stack(losses).sum()


def _draw_blocks(batch: Batch, config: LossConfig) -> Blocks:
    """Place drafts of one random length at random tokens of answers."""
    length = int(torch.randint(config.min_block, config.max_block + 1, ()))
    size, num_blocks = config.block_size, 1
    if config.attention == "block_aligned":
        num_blocks = -(-(int(torch.randint(size, ())) + length) // size)
        length = num_blocks * size
    answered = int(batch.is_answer.sum()) // len(batch.token_ids)
    num_drafts = max(1, round(config.rows_per_answer_token * answered / length))
    if config.attention == "full":
        num_drafts = 1
    # Drawn on the CPU, whose random state is saved in checkpoints.
    starts = torch.multinomial(batch.is_answer.float().cpu(), num_drafts, replacement=True)
    starts = starts.to(batch.token_ids.device)
    if config.attention == "full":
        return place_full_drafts(batch, starts, length)
    if config.attention == "block_causal":
        return place_blocks(batch, starts, length)
    return place_aligned_blocks(batch, starts, num_blocks, size)


def _next_token_loss(model: Any, batch: Batch, config: LossConfig, head: Head) -> torch.Tensor:
    """Return the mean loss of clean rows."""
    is_clean, likely = batch.is_answer[:, 1:], tuple[torch.Tensor, ...]()
    rows = causal_states(model, batch.token_ids)[:, :-1][is_clean]
    if batch.top_ids is not None and batch.top_probs is not None:
        likely = batch.top_ids[:, 1:][is_clean], batch.top_probs[:, 1:][is_clean]
    wanted = batch.token_ids[:, 1:][is_clean]
    weights = torch.full_like(wanted, 1 / max(1, len(wanted)), dtype=torch.float32)
    return _weighted_loss(head, config, rows, wanted, weights, *likely)


def _pick(logprobs: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the values of columns [R, n]; 0 where a column is -1."""
    values = logprobs.gather(1, columns.clamp(min=0))
    return torch.where(columns >= 0, values, 0.0)


def _likely_at(
    batch: Batch, is_clean: torch.Tensor, blocks: Blocks, is_masked: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the target's likeliest ids and their probabilities [R, top] for all rows, if known."""
    if batch.top_ids is None or batch.top_probs is None:
        return ()
    row, column = is_masked.nonzero(as_tuple=True)
    after = blocks.positions[row, column] + 1
    return (
        torch.cat([batch.top_ids[:, 1:][is_clean], batch.top_ids[row, after]]),
        torch.cat([batch.top_probs[:, 1:][is_clean], batch.top_probs[row, after]]),
    )


def _mask(
    batch: Batch, blocks: Blocks, mask_token_id: int, revealed_share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return block tokens and labels; in revealed_share of the calls some tokens are unmasked."""
    masks = masked_tokens(batch, blocks, mask_token_id)
    if torch.rand(()) >= revealed_share:
        return masks, blocks.labels
    last = batch.token_ids.shape[1] - 1
    place = blocks.positions.clamp(max=last)
    own = batch.token_ids.gather(1, place)
    inside = (blocks.positions <= last) & batch.is_token.gather(1, place)
    drawn = torch.rand(own.shape) < torch.rand(())
    given = inside & drawn.to(own.device)
    label_is_given = torch.cat([given[:, 1:], torch.zeros_like(given[:, :1])], 1)
    last_of_block = torch.cat(
        [blocks.block_ids[:, 1:] != blocks.block_ids[:, :-1], torch.ones_like(given[:, :1])], 1
    )
    labels = torch.where(label_is_given & ~last_of_block, -1, blocks.labels)
    return torch.where(given, own, masks), labels
