"""Additive masks: 0 where a new row sees a column, -inf where it does not.

Columns are some of the rows that were there before, then the new rows themselves. A window lets a
row see only what stands less than so many positions before it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

_MAX_KEPT = 1 << 14  # elements of a mask that is kept for the next rows of the same shape


def ordered_mask(
    num_rows: int,
    num_causal: int,
    num_before: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return the mask of rows whose positions follow each other, [num_rows, num_before + num_rows].

    The first num_causal of them see no later row, the others see all of them. Not to be written.
    """
    is_small = num_rows * (num_before + num_rows) <= _MAX_KEPT
    make = _kept_mask if is_small else _ordered_mask
    return make(num_rows, num_causal, num_before, window, dtype, device)


def _ordered_mask(
    num_rows: int,
    num_causal: int,
    num_before: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    shape = num_rows, num_before + num_rows
    nothing = torch.full(shape, -torch.inf, dtype=dtype, device=device)
    mask = nothing.triu(num_before + 1)
    mask[num_causal:] = 0
    return mask if window is None else mask.add_(nothing.tril_(num_before - window))


_kept_mask = lru_cache(maxsize=256)(_ordered_mask)


def listed_mask(
    visible: NDArray[np.bool_],
    positions: NDArray[np.integer],
    start: int,
    num_before: int,
    window: int | None,
) -> torch.Tensor:
    """Return the mask of rows that see of each other what is listed, [num_rows, num_rows].

    The rows before them end with position start - 1; all of the last num_before are seen.
    """
    old = np.ones((len(visible), num_before), np.bool_)
    seen = np.concatenate([old, visible], axis=1) if num_before else visible
    if window is not None:
        columns = np.concatenate([np.arange(start - num_before, start), positions])
        seen = seen & (positions[:, None] - columns < window)
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
