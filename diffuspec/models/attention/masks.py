"""Additive attention masks: 0 where a new row sees a column, -inf where it does not.

Columns are some of the cached rows before the new ones, then the new rows themselves. With a
window, a row at position p sees positions above p - window only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

_MAX_CACHED_ELEMENTS = 1 << 14  # larger masks are built for every forward
_MAX_CACHED_MASKS = 256


class OrderedMask(NamedTuple):
    """The mask of rows at consecutive positions, [num_rows, num_before + num_rows].

    The first num_causal rows see no later row, the others see all rows.
    """

    num_rows: int
    num_causal: int
    num_before: int
    window: int | None
    dtype: torch.dtype
    device: torch.device

    def tensor(self) -> torch.Tensor:
        """Return the mask. Small ones are cached: the caller must not write to the result."""
        is_small = self.num_rows * (self.num_before + self.num_rows) <= _MAX_CACHED_ELEMENTS
        return _cached_tensor(self) if is_small else _make_tensor(self)


def _make_tensor(rows: OrderedMask) -> torch.Tensor:
    shape = rows.num_rows, rows.num_before + rows.num_rows
    nothing = torch.full(shape, -torch.inf, dtype=rows.dtype, device=rows.device)
    mask = nothing.triu(rows.num_before + 1)
    mask[rows.num_causal :] = 0
    return mask if rows.window is None else mask.add_(nothing.tril_(rows.num_before - rows.window))


_cached_tensor = lru_cache(maxsize=_MAX_CACHED_MASKS)(_make_tensor)


def listed_mask(
    visible: NDArray[np.bool_],
    positions: NDArray[np.integer],
    start: int,
    num_before: int,
    window: int | None,
) -> torch.Tensor:
    """Return the mask of rows that see each other as `visible` lists, [n, num_before + n] float32.

    The num_before columns in front hold positions up to start - 1 and are seen by every row within
    the window.
    """
    old = np.ones((len(visible), num_before), np.bool_)
    seen = np.concatenate([old, visible], axis=1) if num_before else visible
    if window is not None:
        columns = np.concatenate([np.arange(start - num_before, start), positions])
        seen = seen & (positions[:, None] - columns < window)
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))


@dataclass(slots=True, eq=False)
class View:
    """A range of cache columns, and which of them the rows of a segment see."""

    first: int
    num_columns: int
    mask: torch.Tensor | None  # additive, for the last columns: the first ones are seen by all
