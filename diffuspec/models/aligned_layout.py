"""The rows of attention with blocks aligned to absolute positions, as segments of a forward.

A row sees all of its own block and all earlier blocks. So a chain of blocks is one segment for each
block, in order: its rows see the rows before the segment, and each other. Rows of hypothetical
prefixes, which do not see each other, are one segment with a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.models.slot_drafts import JoinedRows, SlotDrafts


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


def lay_out_drafts(drafts: SlotDrafts, settings: DiffusionSettings) -> Iterator[Segment]:
    """Lay out drafts whose prefixes share whole blocks."""
    blocks = [
        fill_block(len(prefix), masks, settings)
        for prefix, masks in zip(drafts.prefixes, drafts.masks, strict=True)
    ]
    slot, start, size = drafts.slot, drafts.start, settings.block_size
    if len(blocks) > 1:
        rows = drafts.joined(blocks, settings.is_shifted)
        visible = _visible_rows(rows, drafts.num_common, size)
        yield Segment(slot, start, rows.token_ids, rows.positions, visible, rows.logit_rows)
        return
    [prefix], [masks], [block] = drafts.prefixes, drafts.masks, blocks
    first = len(prefix) - settings.is_shifted
    chain = np.concatenate([prefix[start:], block])
    yield from lay_out_chain(chain, slot, start, size, range(first, first + len(masks)))


def _visible_rows(rows: JoinedRows, num_common: int, block_size: int) -> NDArray[np.bool_]:
    """Return the visibility matrix of common rows, then of several drafts."""
    positions = rows.positions
    visible = np.zeros((len(positions), len(positions)), np.bool_)
    visible[:, :num_common] = True
    for part in (slice(0, num_common), *(slice(one.tail, one.end) for one in rows.spans)):
        ends = (positions[part] // block_size + 1) * block_size
        visible[part, part] = positions[part] < ends[:, None]
    return visible
