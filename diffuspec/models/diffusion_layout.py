"""The layout of prefixes and masked blocks as rows of a forward.

Usually a request has one draft. If it has several hypothetical prefixes, they begin with the same
tokens: these are laid out once, followed by the rest of each prefix (its tail) and its block. Rows
of different drafts do not see each other.

If blocks are aligned to absolute positions, a row sees all of its own block and all earlier blocks.
So a chain of blocks becomes one segment per block, in order: a segment's rows see the rows before
it, and each other. Rows of several drafts become one segment with a visibility matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.loading.families import DiffusionAttention, DiffusionSettings
from diffuspec.models.runner import ModelRunner


class DraftSpan(NamedTuple):
    """The rows of one draft after the shared ones: the tail of its prefix, then its block."""

    tail: int  # first row of the tail
    block: int  # first row of the block
    end: int


class JoinedRows(NamedTuple):
    """The shared rows, followed by those of each draft."""

    token_ids: TokenIds
    positions: NDArray[np.integer]
    logit_rows: NDArray[np.integer]  # rows that predict the masks, draft by draft
    spans: list[DraftSpan]


@dataclass(frozen=True, slots=True, eq=False)
class SlotDrafts:
    """Prefixes and their masks. The cache holds the first `start` tokens of the prefixes.

    The prefixes have their first num_shared tokens in common.
    """

    prefixes: Sequence[TokenIds]
    masks: Sequence[TokenIds]
    slot: int
    start: int
    num_shared: int

    @property
    def num_common(self) -> int:
        """Number of rows that the drafts share."""
        return self.num_shared - self.start

    def joined(self, blocks: Sequence[TokenIds], is_shifted: bool) -> JoinedRows:
        """Lay out the drafts and their blocks, which begin with the masks.

        If shifted, `start` must be below num_shared when a prefix ends there.
        """
        start, num_shared = self.start, self.num_shared
        token_ids = [self.prefixes[0][start:num_shared]]
        positions = [np.arange(start, num_shared)]
        logit_rows, spans, row = [], [], self.num_common
        for prefix, masks, block in zip(self.prefixes, self.masks, blocks, strict=True):
            tail = prefix[num_shared:]
            token_ids += [tail, block]
            positions.append(np.arange(num_shared, len(prefix) + len(block)))
            span = DraftSpan(row, row + len(tail), row + len(tail) + len(block))
            first = span.block - is_shifted
            rows = np.arange(first, first + len(masks))
            if is_shifted and not len(tail):
                rows[0] = self.num_common - 1
            logit_rows.append(rows)
            spans.append(span)
            row = span.end
        return JoinedRows(
            np.concatenate(token_ids), np.concatenate(positions), np.concatenate(logit_rows), spans
        )


def lay_out(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    slot: int,
    start: int,
    num_shared: int,
    settings: DiffusionSettings,
    max_rows: int,
) -> Iterator[Segment]:
    """Lay out the drafts of one slot in segments of at most max_rows unshared rows.

    A larger draft is laid out alone. Segments run in order: the first ones compute the shared rows,
    and the others see them in the cache. start is the number of tokens cached, and num_shared the
    number of leading tokens that all prefixes share, in whole blocks.
    """
    shared = num_shared if settings.has_exact_prefix else start
    make = lay_out_drafts if settings.attention == "block_aligned" else _lay_out
    first = 0
    while first < len(prefixes):
        last, num_rows = first, 0
        while last < len(prefixes):
            num_rows += len(prefixes[last]) - shared + len(blocks[last]) + settings.block_size - 1
            if num_rows > max_rows and last > first:
                break
            last += 1
        part = slice(first, last)
        drafts = SlotDrafts(prefixes[part], blocks[part], slot, start, shared)
        yield from make(drafts, settings)
        first = last
        if settings.has_exact_prefix:
            start = max(num_shared - 1, 0)  # the last shared row is repeated for its logits


def feed(
    runner: ModelRunner,
    slot: int,
    prefix: TokenIds,
    start: int,
    max_rows: int,
    settings: DiffusionSettings,
) -> int:
    """Run and commit at most max_rows tokens of a longer prefix; return the number then cached.

    Sets the slot's length to `start`, the number of cached tokens.
    """
    runner.cache.truncate(slot, start)
    token_ids = prefix[start : start + settings.num_settled(max_rows)]
    if settings.attention == "block_causal":
        return runner.feed(slot, token_ids, start)
    end = start + len(token_ids)
    last_row = range(end - 1, end)
    runner.forward_columns(
        list(lay_out_chain(token_ids, slot, start, settings.block_size, last_row))
    )
    runner.cache.commit(slot, token_ids, len(token_ids))
    return end


def _lay_out(drafts: SlotDrafts, settings: DiffusionSettings) -> Iterator[Segment]:
    """Lay out drafts in one segment.

    If shifted, a token's row predicts the next token: the logits of draft position 1 come from the
    row of the last prefix token, those of position i from the row of block token i - 1. The other
    rows see the row of the last block token, but its logits are not used. If not shifted, the
    logits of position i come from the row of block token i. With block-causal attention, prefix
    rows see the rows before them, and block rows see the prefix and all of their block. With full
    attention, every row sees all of its draft, so no new prefix row can be shared (num_shared is
    start).
    """
    if len(drafts.prefixes) == 1:
        yield _lay_out_one(drafts, settings)
        return
    rows = drafts.joined(drafts.masks, settings.is_shifted)
    visible = _visible_rows(drafts.num_common, rows.spans, settings.attention)
    slot, start = drafts.slot, drafts.start
    yield Segment(slot, start, rows.token_ids, rows.positions, visible, rows.logit_rows)


def _lay_out_one(drafts: SlotDrafts, settings: DiffusionSettings) -> Segment:
    [prefix], [block], start = drafts.prefixes, drafts.masks, drafts.start
    num_tail, num_masks = len(prefix) - start, len(block)
    first = num_tail - settings.is_shifted
    return Segment(
        drafts.slot,
        start,
        np.concatenate([prefix[start:], block]),
        np.arange(start, len(prefix) + num_masks),
        "full" if settings.attention == "full" else num_tail,
        np.arange(first, first + num_masks),
    )


def _visible_rows(
    num_common: int, spans: Sequence[DraftSpan], attention: DiffusionAttention
) -> Visible:
    """Return the visibility matrix of several drafts."""
    num_rows = spans[-1].end
    visible = np.zeros((num_rows, num_rows), np.bool_)
    visible[:, :num_common] = True
    _make_causal(visible, 0, num_common, num_common)
    for tail, block, end in spans:
        visible[tail:end, tail:end] = True
        if attention == "block_causal":
            _make_causal(visible, tail, block, end)
    return visible


def _make_causal(visible: NDArray[np.bool_], first: int, last: int, end: int) -> None:
    """For rows first to last, hide the columns after the row itself, up to column `end`."""
    for row in range(first, last):
        visible[row, row + 1 : end] = False


def fill_block(num_known: int, masks: TokenIds, settings: DiffusionSettings) -> TokenIds:
    """Return a draft's tokens after num_known tokens, with masks up to the end of its last block.

    These models are trained on whole blocks of masks, and generate them.
    """
    num_missing = -(num_known + len(masks)) % settings.block_size
    filling = np.full(num_missing, settings.mask_token_id, masks.dtype)
    return np.concatenate([masks, filling])


def lay_out_chain(
    token_ids: TokenIds, slot: int, start: int, block_size: int, logits: range
) -> Iterator[Segment]:
    """Lay out tokens at the positions from `start` on; `logits` are also positions.

    The cache has the rows before `start`. If `start` is inside a block, they have seen all of it.
    """
    end = start + len(token_ids)
    for block in range(start // block_size * block_size, end, block_size):
        first, last = max(block, start), min(block + block_size, end)
        wanted = np.arange(max(logits.start, first), min(logits.stop, last)) - first
        yield Segment(
            slot,
            first,
            token_ids[first - start : last - start],
            np.arange(first, last),
            "full",
            wanted,
        )


def lay_out_drafts(drafts: SlotDrafts, settings: DiffusionSettings) -> Iterator[Segment]:
    """Lay out drafts whose prefixes share whole blocks."""
    blocks = [
        fill_block(len(prefix), masks, settings)
        for prefix, masks in zip(drafts.prefixes, drafts.masks, strict=True)
    ]
    slot, start, size = drafts.slot, drafts.start, settings.block_size
    if len(blocks) > 1:
        rows = drafts.joined(blocks, settings.is_shifted)
        visible = _visible_in_blocks(rows, drafts.num_common, size)
        yield Segment(slot, start, rows.token_ids, rows.positions, visible, rows.logit_rows)
        return
    [prefix], [masks], [block] = drafts.prefixes, drafts.masks, blocks
    first = len(prefix) - settings.is_shifted
    chain = np.concatenate([prefix[start:], block])
    yield from lay_out_chain(chain, slot, start, size, range(first, first + len(masks)))


def _visible_in_blocks(rows: JoinedRows, num_common: int, block_size: int) -> NDArray[np.bool_]:
    """Return the visibility matrix of common rows and several drafts."""
    positions = rows.positions
    visible = np.zeros((len(positions), len(positions)), np.bool_)
    visible[:, :num_common] = True
    for part in (slice(0, num_common), *(slice(one.tail, one.end) for one in rows.spans)):
        ends = (positions[part] // block_size + 1) * block_size
        visible[part, part] = positions[part] < ends[:, None]
    return visible
