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
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner


class _DraftSpan(NamedTuple):
    """The rows of one draft after the shared ones: the tail of its prefix, then its block."""

    tail: int  # first row of the tail
    block: int  # first row of the block
    end: int


class _JoinedRows(NamedTuple):
    """The shared rows, followed by those of each draft."""

    token_ids: TokenIds
    positions: NDArray[np.integer]
    logit_rows: NDArray[np.integer]  # rows that predict the masks, draft by draft
    spans: list[_DraftSpan]


@dataclass(frozen=True, slots=True, eq=False)
class _TableDrafts:
    """Prefixes and their masks. The cache holds the first `start` tokens of the prefixes.

    The prefixes have their first num_shared tokens in common.
    """

    prefixes: Sequence[TokenIds]
    masks: Sequence[TokenIds]
    table: PageTable
    start: int
    num_shared: int

    @property
    def num_common(self) -> int:
        """Number of rows that the drafts share."""
        return self.num_shared - self.start

    def joined(self, blocks: Sequence[TokenIds], is_shifted: bool) -> _JoinedRows:
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
            span = _DraftSpan(row, row + len(tail), row + len(tail) + len(block))
            first = span.block - is_shifted
            rows = np.arange(first, first + len(masks))
            if is_shifted and not len(tail):
                rows[0] = self.num_common - 1
            logit_rows.append(rows)
            spans.append(span)
            row = span.end
        return _JoinedRows(
            np.concatenate(token_ids), np.concatenate(positions), np.concatenate(logit_rows), spans
        )


def lay_out(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    table: PageTable,
    start: int,
    num_shared: int,
    settings: DiffusionSettings,
    max_rows: int,
) -> Iterator[Segment]:
    """Lay out the drafts of one request in segments of at most max_rows unshared rows.

    A larger draft is laid out alone. Segments run in order: the first ones compute the shared rows,
    and the others see them in the cache. start is the number of tokens cached, and num_shared the
    number of leading tokens that all prefixes share, in whole blocks.
    """
    shared = num_shared if settings.has_exact_prefix else start
    make = _lay_out_aligned if settings.attention == "block_aligned" else _lay_out_unaligned
    first = 0
    while first < len(prefixes):
        last, num_rows = first, 0
        while last < len(prefixes):
            num_rows += len(prefixes[last]) - shared + len(blocks[last]) + settings.block_size - 1
            if num_rows > max_rows and last > first:
                break
            last += 1
        part = slice(first, last)
        drafts = _TableDrafts(prefixes[part], blocks[part], table, start, shared)
        yield from make(drafts, settings)
        first = last
        if settings.has_exact_prefix:
            start = max(num_shared - 1, start)  # the last shared row is repeated for its logits


def feed(
    runner: ModelRunner,
    table: PageTable,
    prefix: TokenIds,
    start: int,
    max_rows: int,
    settings: DiffusionSettings,
) -> int:
    """Run and commit at most max_rows tokens of a longer prefix; return the number then cached.

    Sets the table's length to `start`, the number of cached tokens.
    """
    runner.cache.truncate(table, start)
    token_ids = prefix[start : start + settings.num_settled(max_rows)]
    if settings.attention == "block_causal":
        return runner.feed(table, token_ids, start)
    end = start + len(token_ids)
    last_row = range(end - 1, end)
    runner.forward_columns(
        list(_lay_out_chain(token_ids, table, start, settings.block_size, last_row))
    )
    runner.cache.commit(table, token_ids, len(token_ids))
    return end


def _lay_out_unaligned(drafts: _TableDrafts, settings: DiffusionSettings) -> Iterator[Segment]:
    """Lay out drafts in one segment.

    If shifted, a token's row predicts the next token: the logits of draft position 1 come from the
    row of the last prefix token, those of position i from the row of block token i - 1. If not
    shifted, the logits of position i come from the row of block token i. With block-causal
    attention, prefix rows see the rows before them, and block rows see the prefix and all of their
    block. With full attention, every row sees all of its draft, so no new prefix row can be shared
    (num_shared is start).
    """
    blocks = [_fed(block, settings) for block in drafts.masks]
    if len(blocks) == 1:
        yield _lay_out_one(drafts, blocks[0], settings)
    elif settings.attention == "block_causal":
        yield _lay_out_tree(drafts, blocks, settings)
    else:
        rows = drafts.joined(blocks, settings.is_shifted)
        visible = np.zeros((len(rows.token_ids), len(rows.token_ids)), np.bool_)
        for tail, _, end in rows.spans:
            visible[tail:end, tail:end] = True
        table, start = drafts.table, drafts.start
        yield Segment(table, start, rows.token_ids, rows.positions, visible, rows.logit_rows)


def _fed(block: TokenIds, settings: DiffusionSettings) -> TokenIds:
    """Return the tokens of a block that have a row.

    If a causal LM was trained on to predict the token after each mask, as many masks as predictions
    are one more than it ever saw: the last one, whose row predicts nothing, is left out.
    """
    is_extra = settings.continues_text and block[-1] == settings.mask_token_id
    return block[:-1] if is_extra else block


def _lay_out_one(drafts: _TableDrafts, block: TokenIds, settings: DiffusionSettings) -> Segment:
    [prefix], [masks], start = drafts.prefixes, drafts.masks, drafts.start
    num_tail = len(prefix) - start
    first = num_tail - settings.is_shifted
    return Segment(
        drafts.table,
        start,
        np.concatenate([prefix[start:], block]),
        np.arange(start, len(prefix) + len(block)),
        "full" if settings.attention == "full" else num_tail,
        np.arange(first, first + len(masks)),
    )


def _lay_out_tree(
    drafts: _TableDrafts, blocks: Sequence[TokenIds], settings: DiffusionSettings
) -> Segment:
    """Lay out prefixes as a tree, in which each token is laid out once, followed by the blocks."""
    num_common, is_shifted = drafts.num_common, settings.is_shifted
    token_ids = drafts.prefixes[0][drafts.start : drafts.num_shared].tolist()
    parents = [*range(-1, num_common - 1)]  # by row
    rows = dict[tuple[int, int], int]()  # by parent and token
    ends = []  # last row of each prefix
    for prefix in drafts.prefixes:
        row = num_common - 1
        for token_id in prefix[drafts.num_shared :].tolist():
            found = rows.setdefault((row, token_id), len(token_ids))
            if found == len(token_ids):
                token_ids.append(token_id)
                parents.append(row)
            row = found
        ends.append(row)
    num_rows = len(token_ids) + sum(map(len, blocks))
    visible, positions = np.zeros((num_rows, num_rows), np.bool_), np.zeros(num_rows, np.int64)
    for row, parent in enumerate(parents):
        visible[row] = visible[parent] if parent >= 0 else False
        visible[row, row] = True
        positions[row] = positions[parent] + 1 if parent >= 0 else drafts.start
    logit_rows, first = list[int](), len(token_ids)
    for end, prefix, masks, block in zip(ends, drafts.prefixes, drafts.masks, blocks, strict=True):
        last = first + len(block)
        visible[first:last] = visible[end] if end >= 0 else False
        visible[first:last, first:last] = True
        positions[first:last] = np.arange(len(prefix), len(prefix) + len(block))
        predicting = [end, *range(first, last)] if is_shifted else [*range(first, last)]
        logit_rows += predicting[: len(masks)]
        first = last
    fed = np.concatenate([np.array(token_ids, np.int32), *blocks])
    return Segment(drafts.table, drafts.start, fed, positions, visible, logit_rows)


def _fill_block(num_known: int, masks: TokenIds, settings: DiffusionSettings) -> TokenIds:
    """Return a draft's tokens after num_known tokens, with masks up to the end of its last block.

    These models are trained on whole blocks of masks, and generate them.
    """
    num_missing = -(num_known + len(masks)) % settings.block_size
    filling = np.full(num_missing, settings.mask_token_id, masks.dtype)
    return np.concatenate([masks, filling])


def _lay_out_chain(
    token_ids: TokenIds, table: PageTable, start: int, block_size: int, logits: range
) -> Iterator[Segment]:
    """Lay out tokens at the positions from `start` on; `logits` are also positions.

    The cache has the rows before `start`. If `start` is inside a block, they have seen all of it.
    """
    end = start + len(token_ids)
    for block in range(start // block_size * block_size, end, block_size):
        first, last = max(block, start), min(block + block_size, end)
        wanted = np.arange(max(logits.start, first), min(logits.stop, last)) - first
        yield Segment(
            table,
            first,
            token_ids[first - start : last - start],
            np.arange(first, last),
            "full",
            wanted,
        )


def _lay_out_aligned(drafts: _TableDrafts, settings: DiffusionSettings) -> Iterator[Segment]:
    """Lay out drafts whose prefixes share whole blocks."""
    blocks = [
        _fill_block(len(prefix), masks, settings)
        for prefix, masks in zip(drafts.prefixes, drafts.masks, strict=True)
    ]
    table, start, size = drafts.table, drafts.start, settings.block_size
    if len(blocks) > 1:
        rows = drafts.joined(blocks, settings.is_shifted)
        visible = _visible_in_blocks(rows, drafts.num_common, size)
        yield Segment(table, start, rows.token_ids, rows.positions, visible, rows.logit_rows)
        return
    [prefix], [masks], [block] = drafts.prefixes, drafts.masks, blocks
    first = len(prefix) - settings.is_shifted
    chain = np.concatenate([prefix[start:], block])
    yield from _lay_out_chain(chain, table, start, size, range(first, first + len(masks)))


def _visible_in_blocks(rows: _JoinedRows, num_common: int, block_size: int) -> NDArray[np.bool_]:
    """Return the visibility matrix of common rows and several drafts."""
    positions = rows.positions
    visible = np.zeros((len(positions), len(positions)), np.bool_)
    visible[:, :num_common] = True
    for part in (slice(0, num_common), *(slice(one.tail, one.end) for one in rows.spans)):
        ends = (positions[part] // block_size + 1) * block_size
        visible[part, part] = positions[part] < ends[:, None]
    return visible
