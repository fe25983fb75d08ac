"""Drafts of one slot as rows: those that their prefixes share, then the rest of each draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds


class DraftSpan(NamedTuple):
    """The rows of one draft after the shared ones: the tail of its prefix, then its block."""

    tail: int  # first row of the tail
    block: int  # first row of the block
    end: int


class JoinedRows(NamedTuple):
    """The shared rows, then those of each draft."""

    token_ids: TokenIds
    positions: NDArray[np.integer]
    logit_rows: NDArray[np.integer]  # rows that predict the masks, draft by draft
    spans: list[DraftSpan]


@dataclass(frozen=True, slots=True, eq=False)
class SlotDrafts:
    """Prefixes and their masks. The cache has the first `start` tokens of the prefixes.

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
        """Lay out the drafts with their blocks, which begin with the masks.

        Shifted, `start` must be below num_shared if a prefix ends there.
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
