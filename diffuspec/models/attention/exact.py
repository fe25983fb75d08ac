"""Attention of one segment on a CPU in which a row's bits depend only on the rows that it sees.

A row is computed as if it were alone, but for the number of columns, which makes no difference
while they end at a multiple of COLUMNS: torch's kernel goes through them in a fixed order, and
masked columns add zeros at the end. The order is that of a chain: the branches of a draft tree take
turns at the columns after the prefix, where each of them stands in a chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.kernels import attend_fused
from diffuspec.models.attention.masks import View, ordered_mask
from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.attention.segment import Segment

COLUMNS = 64  # caches must have a multiple of it
_BLOCK = 512  # columns that torch's kernel takes at a time: a masked block changes nothing
_MAX_ROWS = 256  # bounds masks


class ExactPart:
    """The attention of one segment, whose `visible` is "causal" or the matrix of a tree."""

    def __init__(self, segment: Segment, cache: KVCache) -> None:
        assert cache.max_len % COLUMNS == 0, f"caches must have a multiple of {COLUMNS} rows"
        self.num_rows = segment.num_rows
        self._start = segment.start
        self._layers = cache.layers(segment.slot)
        self._pieces = list(_pieces(segment))
        self._order: torch.Tensor | None = None  # the rows, piece after piece; None: as they are
        if len(self._pieces) > 1 and not isinstance(segment.visible, str):
            self._order = torch.cat([piece.rows for piece in self._pieces])
            self._places = self._order.argsort()  # of each row in that order

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        assert scoring.is_plain, "exact attention takes a scaling and a window only"
        keys, values = self._layers[2 * layer], self._layers[2 * layer + 1]
        queries, new_keys, new_values = query, key, value
        if self._order is not None:
            order = self._order
            queries, new_keys, new_values = (x.index_select(1, order) for x in (query, key, value))
        outputs, first = [], 0
        for piece in self._pieces:
            mine, view = (1, first, len(piece.rows)), piece.view(scoring.window, keys)
            first += len(piece.rows)
            here = 1, piece.first_column, len(piece.rows)
            keys.narrow(*here).copy_(new_keys.narrow(*mine))
            values.narrow(*here).copy_(new_values.narrow(*mine))
            seen = 1, view.first, view.num_columns
            columns = keys.narrow(*seen), values.narrow(*seen)
            outputs.append(_attend(queries.narrow(*mine), *columns, view, scoring.scaling))
        output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        if self._order is None:
            return output
        keys.narrow(1, self._start, self.num_rows).copy_(key)  # where a commit looks for them
        values.narrow(1, self._start, self.num_rows).copy_(value)
        return output.index_select(0, self._places)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, scaling: float
) -> torch.Tensor:
    num_copies, num_rows = query.shape[0] // keys.shape[0], query.shape[1]
    if num_copies * num_rows == 1:  # products with a single row sum in another order
        query, num_copies = query.repeat(1, 2, 1), 2
    mask = view.whole_mask(num_copies)
    return attend_fused(query, keys, values, mask, scaling)[:num_rows]


@dataclass(slots=True, eq=False)
class _Piece:
    """Rows that follow each other in one branch."""

    rows: torch.Tensor  # of the segment
    first_column: int  # where the first of them stands
    _views: dict[int | None, View] = field(default_factory=dict)  # by window

    def view(self, window: int | None, keys: torch.Tensor) -> View:
        end = self.first_column + len(self.rows)
        if window is not None and window >= end:
            window = None
        if window not in self._views:
            first = num_before = 0
            if window is not None:
                first = max(0, self.first_column + 1 - window) // _BLOCK * _BLOCK
                num_before = self.first_column - first
            num_rows, like = len(self.rows), (keys.dtype, keys.device)
            mask = ordered_mask(num_rows, num_rows, num_before, window, *like)
            mask = pad(mask, (0, -end % COLUMNS), value=-torch.inf)
            self._views[window] = View(first, end + -end % COLUMNS - first, mask)
        return self._views[window]


def _pieces(segment: Segment) -> Iterator[_Piece]:
    """Cut a segment into pieces, a tree's branch after branch.

    Before a branch come all rows that it shares with others. Its neighbour is the branch that
    shares most with it, so that what stands at the columns before a piece is its ancestors.
    """
    if isinstance(segment.visible, str):
        assert segment.visible == "causal"
        branches = [(0, list(range(segment.num_rows)))]
    else:
        assert not isinstance(segment.visible, int)
        branches = list(_branches(segment.visible))
    for depth, rows in branches:
        for first in range(0, len(rows), _MAX_ROWS):
            piece = torch.tensor(rows[first : first + _MAX_ROWS])
            yield _Piece(piece, segment.start + depth + first)


def _branches(visible: NDArray[np.bool_]) -> Iterator[tuple[int, list[int]]]:
    """Yield the branches of a tree in depth-first order: the depth of the first row, and the rows.

    Row i sees column j of `visible` where j is i or an ancestor of i; parents come first.
    """
    depths = visible.sum(axis=1) - 1
    children: list[list[int]] = [[] for _ in depths]
    roots = []
    for row, depth in enumerate(depths.tolist()):
        if depth == 0:
            roots.append(row)
        else:
            ancestors = np.flatnonzero(visible[row, :row])
            children[int(ancestors[-1])].append(row)
    stack = roots[::-1]
    while stack:
        row = stack.pop()
        depth, rows = int(depths[row]), [row]
        while children[row]:
            stack += children[row][:0:-1]
            row = children[row][0]
            rows.append(row)
        yield depth, rows
