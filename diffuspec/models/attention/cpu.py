"""Attention of one segment on a CPU, over only the columns that each row sees.

A row's result is bitwise independent of the rest of the segment, and of which of the columns before
it are new.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from diffuspec.core.pages import num_pages_of
from diffuspec.models.attention.interface import Attention, Projections, Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import has_tiles
from diffuspec.models.kernels.visible_columns import VisibleColumns
from diffuspec.models.pages.store import CacheShape, PageStore
from diffuspec.models.pages.table import PageTable

logger = logging.getLogger(__name__)

_MAX_ROWS = 64  # rows of a chain in one piece


def can_attend(like: Tensor) -> bool:
    """Return whether there is a kernel for tensors like this one."""
    is_known = operations.is_available and like.is_cpu and like.dtype in operations.TYPES
    return is_known and _are_rows_independent(like.dtype)


@cache
def _are_rows_independent(dtype: torch.dtype) -> bool:
    """Test whether rows have the same bits together and alone: compilers may reorder sums."""
    if all(_is_row_independent(dtype, num_heads) for num_heads in (1, 2, 3)):
        return True
    logger.warning(
        "attention in %s is computed by torch, which is slower: in the kernel compiled here, "
        "a row's result depends on the others; reinstall diffuspec with GCC",
        dtype,
    )
    return False


@torch.inference_mode()
def _is_row_independent(dtype: torch.dtype, num_heads: int) -> bool:
    """Compare rows after a whole block of columns, with heads that share keys."""
    first, end, dim = 70, 77, 32
    random = torch.Generator().manual_seed(0)
    new = [torch.randn(n, end, dim, generator=random).to(dtype) for n in (num_heads, 1, 1)]

    def attend(start: int, end: int, transposes_keys: bool) -> Tensor:
        count = num_pages_of(end)
        filled = PageStore(CacheShape(1, 1, dim), count, dtype, transposes_keys=transposes_keys)
        table = PageTable("trial", pages=np.arange(count, dtype=np.int32)[::-1].copy())
        for first, last in ((0, start), (start, end)):
            positions = np.arange(first, last)
            part = CpuAttention(Segment(table, first, positions, positions, "causal", ()), filled)
            rows = Projections(*(x[:, first:last] for x in new))
            output = part.attend(0, rows, Scoring(0.3))
        return output

    together = attend(first, end, transposes_keys=False)
    return all(
        torch.equal(together[row - first], attend(row, row + 1, transposes_keys)[0])
        for transposes_keys in {False, _prefers_transposed_keys(dtype)}
        for row in range(first, end)
    )


def transposes_keys(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a cache should store its keys transposed, in the kernel's layout."""
    like = torch.empty(0, dtype=dtype, device=device)
    return _prefers_transposed_keys(dtype) and can_attend(like)


def _prefers_transposed_keys(dtype: torch.dtype) -> bool:
    """Return whether the kernel is faster with transposed keys; AMX loads tiles of whole rows."""
    return not (dtype == torch.bfloat16 and has_tiles())


class CpuAttention(Attention):
    """The attention of one segment, computed by the compiled kernel."""

    def __init__(self, segment: Segment, store: PageStore) -> None:
        self._segment, self._store = segment, store

    @cached_property
    def _pieces(self) -> list[VisibleColumns]:
        return list(pieces(self._segment))

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        assert scoring.is_plain, "the kernel takes a scaling and a window only"
        keys, values = self._store.layer(layer)
        num_heads, num_rows, dim = rows.query.shape
        output = rows.query.new_empty(num_rows, num_heads, dim)
        for piece in self._pieces:
            operations.attend(
                *rows,
                keys,
                values,
                self._segment.table.pages,
                output,
                piece,
                scoring.scaling,
                scoring.window,
                self._store.transposes_keys,
            )
        return output


def pieces(segment: Segment) -> Iterator[VisibleColumns]:
    """Split a segment into chains of _MAX_ROWS rows, followed by its other rows."""
    start, count = segment.start, segment.num_chained
    num_left = segment.num_rows - count
    first = 0
    while count - first > (_MAX_ROWS if num_left == 0 else 2 * _MAX_ROWS):
        yield VisibleColumns.chain(first, _MAX_ROWS, start)
        first += _MAX_ROWS
    if isinstance(segment.visible, np.ndarray) and num_left:
        yield VisibleColumns.listed(first, start, segment.visible, segment.positions)
    elif num_left:
        num_rows = segment.num_rows - first
        yield VisibleColumns.partly_causal(first, num_rows, start, num_left, segment.num_after)
    else:
        yield VisibleColumns.chain(first, segment.num_rows - first, start)
