"""The rows of attention with blocks aligned to absolute positions, as segments of a forward.

A row sees all of its own block and all earlier blocks. So a chain of blocks is one segment for each
block, in order: its rows see the rows before the segment, and each other. Rows of hypothetical
prefixes, which do not see each other, are one segment with a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.families import DiffusionSettings


def fill_block(num_known: int, masks: TokenIds, settings: DiffusionSettings) -> TokenIds:
    """Return a draft's rows after num_known tokens, with masks up to the end of its last block.

    These models are trained on, and generate, whole blocks of masks.
    """
    num_missing = -(num_known + len(masks)) % settings.block_size
    filling = np.full(num_missing, settings.mask_token_id, masks.dtype)
    return np.concatenate([masks, filling])


def lay_out_chain(
    token_ids: TokenIds, slot: int, start: int, block_size: int, logits: range
) -> Iterator[Segment]:
    """Lay out tokens at the positions from `start` on, where `logits` are positions, too.

    The cache has the rows before `start`. If that is inside a block, they know all of the block.
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


def lay_out_drafts(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    slot: int,
    start: int,
    num_shared: int,
    settings: DiffusionSettings,
) -> Iterator[Segment]:
    """Lay out drafts whose prefixes share num_shared leading tokens, those of whole blocks.

    Shifted, start is below num_shared if a prefix ends there.
    """
    filled = [
        fill_block(len(prefix), masks, settings)
        for prefix, masks in zip(prefixes, blocks, strict=True)
    ]
    if len(prefixes) > 1:
        yield _lay_out_several(prefixes, blocks, filled, slot, start, num_shared, settings)
        return
    [prefix], [masks], [rest] = prefixes, blocks, filled
    first = len(prefix) - settings.is_shifted
    chain = np.concatenate([prefix[start:], rest])
    logits = range(first, first + len(masks))
    yield from lay_out_chain(chain, slot, start, settings.block_size, logits)


def _lay_out_several(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    filled: Sequence[TokenIds],
    slot: int,
    start: int,
    num_shared: int,
    settings: DiffusionSettings,
) -> Segment:
    """Lay out the shared rows, then the rest of each prefix with its filled block."""
    num_common = num_shared - start
    token_ids, positions = [prefixes[0][start:num_shared]], [np.arange(start, num_shared)]
    logit_rows, spans, row = [], [], num_common
    for prefix, masks, rest in zip(prefixes, blocks, filled, strict=True):
        tail = prefix[num_shared:]
        token_ids += [tail, rest]
        positions.append(np.arange(num_shared, len(prefix) + len(rest)))
        first = row + len(tail) - settings.is_shifted
        rows = np.arange(first, first + len(masks))
        if settings.is_shifted and not len(tail):
            rows[0] = num_common - 1
        logit_rows.append(rows)
        spans.append(slice(row, row + len(tail) + len(rest)))
        row = spans[-1].stop
    where = np.concatenate(positions)
    visible = _visible_rows(where, num_common, spans, settings.block_size)
    return Segment(
        slot, start, np.concatenate(token_ids), where, visible, np.concatenate(logit_rows)
    )


def _visible_rows(
    positions: NDArray[np.integer], num_common: int, spans: Sequence[slice], block_size: int
) -> NDArray[np.bool_]:
    """Return the visibility matrix of common rows, then of several drafts."""
    visible = np.zeros((len(positions), len(positions)), np.bool_)
    visible[:, :num_common] = True
    for rows in (slice(0, num_common), *spans):
        ends = (positions[rows] // block_size + 1) * block_size
        visible[rows, rows] = positions[rows] < ends[:, None]
    return visible
