"""Packs answers into batches without padding, of one size: NumPy on a CPU, beside the training.

A batch is one sequence of clean rows, whole examples one after another, and then the masked rows of
drafts. Of each row it says which columns it sees: two ranges, one in the text and one in its draft.
Every attention that `blocks` describes has this form, but for `full`, which needs a text per draft.
Places are indices into the tokens of all examples, which stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.pairs.factory.examples import Example, order_of_turn

TILE = 128  # rows of a packed batch are a multiple of this, the tile of FlexAttention
MASKED_ROWS = 2  # masked rows for each clean row
# Share of the clean rows that are in the loss: about two thirds of those in answers.
_LOSS_SHARE = 5 / 16

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Texts:
    """All examples, one after another; grows with them."""

    token_ids: NDArray[np.int32]  # [T]
    starts: Ints  # [examples + 1] places
    answer_ends: Ints  # [T] the place after the answer that a token is in; -1: it is in none

    @staticmethod
    def of(examples: Sequence[Example]) -> Texts:
        starts = np.cumsum([0, *[example.num_tokens for example in examples]])
        joined = np.concatenate([example.token_ids for example in examples]).astype(np.int32)
        is_answer = np.concatenate([example.is_answer for example in examples])
        last = np.append(is_answer[1:] != is_answer[:-1], True)  # the last token of a stretch
        last[starts[1:] - 1] = True
        ends = np.flatnonzero(last)
        answer_ends = ends[np.searchsorted(ends, np.arange(len(joined)))] + 1
        return Texts(joined, starts, np.where(is_answer, answer_ends, -1))


@dataclass(frozen=True, slots=True)
class PackedShape:
    """The numbers of rows, and how drafts look; a subset of LossConfig."""

    num_clean: int
    num_masked: int
    min_block: int
    max_block: int
    clean_weight: float
    position_decay: float
    revealed_share: float
    block_size: int = 1  # above 1: blocks are aligned to multiples of it

    @property
    def num_rows(self) -> int:
        return self.num_clean + self.num_masked


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch of R rows, W of which are in the loss."""

    places: torch.Tensor  # [R] of the rows' tokens; -1: a mask
    positions: torch.Tensor  # [R] in the row's own example
    sight: torch.Tensor  # [4, R] start and end of the columns seen in the text, and in the draft
    learning: torch.Tensor  # [W] rows that predict
    labels: torch.Tensor  # [W] places of the tokens to predict; -1: none
    weights: torch.Tensor  # [W]

    def to(self, device: torch.device) -> Packed:
        """Copy to a device without waiting for it."""
        if device.type == "cpu":
            return self
        return Packed(
            *[
                getattr(self, field.name).pin_memory().to(device, non_blocking=True)
                for field in fields(self)
            ]
        )


def pack(
    texts: Texts, chosen: Iterable[int], shape: PackedShape, rng: np.random.Generator
) -> Packed:
    """Return a batch of examples in the order chosen; the last one is cut to fit."""
    clean = _CleanRows.of(texts, chosen, shape)
    masked = _draw(clean, shape, rng) if shape.num_masked else _MaskedRows.none()
    weights = _shares(shape.position_decay**masked.offsets, masked.labels)
    learning, wanted = clean.learning(shape, rng)
    shares = shape.clean_weight * _shares(np.ones(len(wanted)), wanted)

    def joined(*parts: NDArray[Any], dtype: type[np.generic] = np.int64) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(dtype))

    return Packed(
        joined(clean.places, masked.known, dtype=np.int32),
        joined(clean.positions, masked.positions, dtype=np.int32),
        torch.from_numpy(np.concatenate([clean.sight, masked.sight], axis=1).astype(np.int32)),
        joined(learning, np.arange(shape.num_clean, shape.num_rows)),
        joined(wanted, masked.labels),
        joined(shares, weights, dtype=np.float32),
    )


def _shares(weights: NDArray[np.floating[Any]], labels: Ints) -> NDArray[np.float64]:
    """Return weights that sum to 1; 0 where there is no label."""
    kept = np.where(labels >= 0, weights, 0.0)
    return np.asarray(kept / max(kept.sum(), 1e-9))


@dataclass(frozen=True, slots=True)
class _CleanRows:
    """The rows of the examples, [num_clean] each."""

    places: Ints
    positions: Ints
    starts: Ints  # the row of the example's first token
    ends: Ints  # the row after the example's last one
    answer_ends: Ints  # the row after the answer that the token is in; -1: none
    sight: Ints  # [4, num_clean]

    @staticmethod
    def of(texts: Texts, chosen: Iterable[int], shape: PackedShape) -> _CleanRows:
        examples, lengths, num_left = [], [], shape.num_clean
        for example in chosen:
            length = int(texts.starts[example + 1] - texts.starts[example])
            examples.append(example)
            lengths.append(min(length, num_left))
            num_left -= lengths[-1]
            if not num_left:
                break
        assert not num_left, "too few examples for a batch"
        sizes = np.array(lengths)
        first = np.repeat(np.cumsum(sizes) - sizes, sizes)
        ends = np.repeat(np.cumsum(sizes), sizes)
        rows = np.arange(shape.num_clean)
        positions = rows - first
        places = np.repeat(texts.starts[np.array(examples)], sizes) + positions
        answers = texts.answer_ends[places]
        answer_ends = np.where(answers < 0, -1, np.minimum(rows + answers - places, ends))
        size = shape.block_size
        seen = np.minimum(first + (positions // size + 1) * size, ends)
        nothing = np.zeros_like(rows)
        sight = np.stack([first, seen, nothing, nothing])
        return _CleanRows(places, positions, first, ends, answer_ends, sight)

    def learning(self, shape: PackedShape, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Draw rows that predict the token after them, and the places of these tokens."""
        wanted = (self.answer_ends >= 0) & (self.positions > 0)
        if shape.block_size > 1:  # only the last row of a block does not see the token after it
            wanted &= self.positions % shape.block_size == 0
        found = np.flatnonzero(wanted)
        count = round(shape.num_clean * _LOSS_SHARE)
        drawn = np.sort(rng.permutation(found)[:count])
        missing = count - len(drawn)
        rows = np.concatenate([drawn - 1, np.zeros(missing, np.int64)])
        return rows, np.concatenate([self.places[drawn], np.full(missing, -1)])


@dataclass(frozen=True, slots=True)
class _MaskedRows:
    """The rows of the drafts, [num_masked] each."""

    known: Ints  # places of tokens that are not masked; -1: a mask
    positions: Ints
    sight: Ints  # [4, num_masked]
    labels: Ints  # places; -1: none
    offsets: Ints  # number of tokens of the draft before the label

    @staticmethod
    def none() -> _MaskedRows:
        rows = np.zeros(0, np.int64)
        return _MaskedRows(rows, rows, np.zeros((4, 0), np.int64), rows, rows)


def _draw(clean: _CleanRows, shape: PackedShape, rng: np.random.Generator) -> _MaskedRows:
    """Place drafts of random lengths at random tokens of answers, in their order."""
    size, num_masked = shape.block_size, shape.num_masked
    lengths = rng.integers(shape.min_block, shape.max_block + 1, num_masked // shape.min_block + 1)
    if size > 1:
        lengths = -(-(rng.integers(0, size, len(lengths)) + lengths) // size) * size
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), num_masked) + 1]
    lengths[-1] -= lengths.sum() - num_masked
    places = np.flatnonzero(clean.answer_ends >= 0)
    if not len(places):  # nothing but a part of a prompt: drafts without labels
        places = np.zeros(1, np.int64)
    if len(places) >= len(lengths):
        starts = rng.permutation(places)[: len(lengths)]
    else:
        starts = rng.choice(places, len(lengths))
    rows = place_drafts(clean, np.sort(starts), lengths, size)
    return _revealed(clean, rows, shape, rng)


def place_drafts(clean: _CleanRows, starts: Ints, lengths: Ints, size: int = 1) -> _MaskedRows:
    """Return the rows of drafts whose first tokens are those of some clean rows.

    size: of aligned blocks, where lengths are those of whole blocks; 1: a draft is one block.
    """
    num_clean, first = len(clean.places), np.repeat(np.cumsum(lengths) - lengths, lengths)
    start, rows = np.repeat(starts, lengths), np.arange(lengths.sum())
    offsets, end = rows - first, first + np.repeat(lengths, lengths)
    begin = clean.positions[start] // size * size  # where the draft's first block does
    positions = begin + offsets
    text = clean.starts[start]
    seen_end = end if size == 1 else first + (positions // size + 1) * size - begin
    sight = np.stack([text, text + begin, num_clean + first, num_clean + np.minimum(seen_end, end)])
    after = text + positions + 1  # the row of the token after
    has_label = (after < clean.answer_ends[start]) & (after >= start)
    labels = np.where(has_label, clean.places[np.minimum(after, num_clean - 1)], -1)
    is_known = text + positions < start
    known = np.where(is_known, clean.places[np.minimum(after - 1, num_clean - 1)], -1)
    decayed = offsets if size == 1 else np.maximum(after - start, 0)
    return _MaskedRows(known, positions, sight, labels, decayed)


def _revealed(
    clean: _CleanRows, rows: _MaskedRows, shape: PackedShape, rng: np.random.Generator
) -> _MaskedRows:
    """Show some tokens of a share of the drafts; what is shown need not be predicted."""
    drafts = rows.sight[2] - len(clean.places)  # the first row of the draft
    num_rows, at = len(rows.known), rows.sight[0] + rows.positions
    share = (rng.random(num_rows) < shape.revealed_share) * rng.random(num_rows)
    inside = at < clean.ends[rows.sight[0]]
    shown = inside & (rng.random(num_rows) < share[drafts])
    next_is_shown = np.append(shown[1:] & (drafts[1:] == drafts[:-1]), False)
    return _MaskedRows(
        np.where(shown, clean.places[np.minimum(at, len(clean.places) - 1)], rows.known),
        rows.positions,
        rows.sight,
        np.where(next_is_shown, -1, rows.labels),
        rows.offsets,
    )


def examples_of_batch(texts: Texts, seed: int, batch: int, num_clean: int) -> Iterable[int]:
    """Yield enough examples for a batch, by its number since the start of the training.

    Successive batches use all examples once, in random order, before they use any of them again.
    They depend only on the seed, the number and the examples, so that training resumes exactly.
    """
    count = len(texts.starts) - 1
    step = max(1, round(num_clean * count / texts.starts[-1]))
    at = batch * step
    while True:
        turn, index = divmod(at, count)
        yield order_of_turn(count, f"{seed}/{turn}")[index]
        at += 1
