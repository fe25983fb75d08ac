"""How prefixes and masked blocks are laid out as rows.

Usually a request has one draft. Hypothetical prefixes of the same request begin alike: what they
share is laid out once, then come each draft's own prefix tail and block, and drafts do not see
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds
from diffuspec.models.attention.packed import Segment, Visible
from diffuspec.models.loading.checkpoint import DiffusionAttention


def num_shared_tokens(prefixes: Sequence[TokenIds]) -> int:
    """Return how many leading tokens all prefixes have in common."""
    if len(prefixes) == 1:
        return len(prefixes[0])
    first, length = prefixes[0], min(len(prefix) for prefix in prefixes)
    for prefix in prefixes[1:]:
        differs = np.flatnonzero(first[:length] != prefix[:length])
        length = int(differs[0]) if len(differs) else length
    return length


def lay_out(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    slot: int,
    start: int,
    num_shared: int,
    attention: DiffusionAttention,
    max_rows: int,
) -> Iterator[Segment]:
    """Lay out drafts of one slot in as few segments as have max_rows rows of their own each.

    Segments run in order: the first computes the shared rows, the others build on them.
    """
    shared = num_shared if attention == "block_causal" else start
    first = 0
    while first < len(prefixes):
        last, num_rows = first, 0
        while last < len(prefixes):
            num_rows += len(prefixes[last]) - shared + len(blocks[last])
            if num_rows > max_rows and last > first:
                break
            last += 1
        yield _lay_out(prefixes[first:last], blocks[first:last], slot, start, shared, attention)
        first = last
        if attention == "block_causal":
            start = max(num_shared - 1, 0)  # its row is needed again: it gives logits


def _lay_out(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    slot: int,
    start: int,
    num_shared: int,
    attention: DiffusionAttention,
) -> Segment:
    """Lay out drafts that begin with `start` cached tokens and num_shared equal ones.

    Shift by one: the row of a token predicts the next one. Draft position 1 is read at the last
    prefix token's row, position i at the row of block token i - 1; the last block token's row is
    seen by the others but not read. Block-causal: prefix rows see what precedes them, block rows
    the prefix and all of their block. Full: every row sees all of its draft, so that no new
    prefix row can be shared (num_shared is start).
    """
    if len(prefixes) == 1:
        return _lay_out_one(prefixes[0], blocks[0], slot, start, attention)
    num_common = num_shared - start
    token_ids = [prefixes[0][start:num_shared]]
    positions = [np.arange(start, num_shared)]
    logit_rows, spans, row = [], [], num_common
    for prefix, block in zip(prefixes, blocks, strict=True):
        length, num_masks = len(prefix) - num_shared, len(block)
        token_ids += [prefix[num_shared:], block]
        positions.append(np.arange(num_shared, len(prefix) + num_masks))
        rows = np.arange(row + length - 1, row + length - 1 + num_masks)
        rows[0] = rows[0] if length else num_common - 1
        logit_rows.append(rows)
        spans.append((row, row + length, row + length + num_masks))
        row += length + num_masks
    return Segment(
        slot,
        start,
        np.concatenate(token_ids),
        np.concatenate(positions),
        _visible_rows(num_common, spans, attention),
        np.concatenate(logit_rows),
    )


def _lay_out_one(
    prefix: TokenIds, block: TokenIds, slot: int, start: int, attention: DiffusionAttention
) -> Segment:
    num_tail, num_masks = len(prefix) - start, len(block)
    return Segment(
        slot,
        start,
        np.concatenate([prefix[start:], block]),
        np.arange(start, len(prefix) + num_masks),
        "full" if attention == "full" else num_tail,
        np.arange(num_tail - 1, num_tail - 1 + num_masks),
    )


def _visible_rows(
    num_common: int, spans: Sequence[tuple[int, int, int]], attention: DiffusionAttention
) -> Visible:
    """A span is (first row of a draft's tail, first row of its block, end of its block)."""
    num_rows = spans[-1][2]
    visible = np.zeros((num_rows, num_rows), np.bool_)
    visible[:, :num_common] = True
    _make_causal(visible, 0, num_common, num_common)
    for tail, block, end in spans:
        visible[tail:end, tail:end] = True
        if attention == "block_causal":
            _make_causal(visible, tail, block, end)
    return visible


def _make_causal(visible: NDArray[np.bool_], first: int, last: int, end: int) -> None:
    """Take from the rows first to last what comes after them, up to a column."""
    for row in range(first, last):
        visible[row, row + 1 : end] = False
