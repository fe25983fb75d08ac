"""Copies between this process's memory and a device's, in which nothing waits that need not.

A copy to a GPU is queued behind what has been launched there, and returns at once. So a step is
launched whole, from its inputs to its tokens, and only reading these waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(
    values: NDArray[Any] | Sequence[Any], device: torch.device, kind: Any = None
) -> Tensor:
    """Return an array on a device; on a CPU it may share the array's memory.

    kind: numpy's type of the numbers, by default the array's own.
    """
    array = torch.from_numpy(np.ascontiguousarray(values, kind))
    return array if device.type == "cpu" else pinned(array).to(device, non_blocking=True)


def pinned(array: Tensor) -> Tensor:
    """Return a copy in memory that GPUs read by themselves, reused once they have read it."""
    return array.pin_memory()


def to_host(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers, once they have been computed."""
    if not tensor.is_cuda:
        return tensor.numpy()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return copy.numpy()
