"""The layout of prefixes and masked blocks as rows of a forward.

Usually a request has one draft. Several hypothetical prefixes of one request begin with the same
tokens: these are laid out once, followed by the rest of each prefix (its tail) and its block. Rows
of different drafts do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds
from diffuspec.models.aligned_layout import lay_out_chain, lay_out_drafts
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.loading.families import DiffusionAttention, DiffusionSettings
from diffuspec.models.runner import ModelRunner
from diffuspec.models.slot_drafts import DraftSpan, SlotDrafts


def lay_out(
    prefixes: Sequence[TokenIds],
    blocks: Sequence[TokenIds],
    slot: int,
    start: int,
    num_shared: int,
    settings: DiffusionSettings,
    max_rows: int,
) -> Iterator[Segment]:
    """Lay out the drafts of one slot in segments, together with at most max_rows unshared rows.

    A draft of more rows is laid out alone. Segments run in order: the first ones compute the
    shared rows, and the others see them in the cache. start is the number of tokens cached, and
    num_shared the number of leading tokens that all prefixes share, in whole blocks.
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
    """Feed and commit at most max_rows tokens of a longer prefix; return how many are cached then.

    `start`, the number of those cached, is made the slot's length.
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

    Shifted, a token's row predicts the next token: the logits of draft position 1 come from the row
    of the last prefix token, those of position i from the row of block token i - 1. The row of the
    last block token is seen by the others, but its logits are not used. Not shifted, the logits of
    position i come from the row of block token i. Block-causal: prefix rows see the rows before
    them, block rows the prefix and all of their block. Full: every row sees all of its draft, so
    that no new prefix row can be shared (num_shared is start).
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
    """Hide the columns after each row from it, for rows first to last, up to column `end`."""
    for row in range(first, last):
        visible[row, row + 1 : end] = False
