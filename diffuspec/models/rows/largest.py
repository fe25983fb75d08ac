"""The most probable columns of logits.

torch takes one pass over the logits for their softmax and several for a top-k, and starts half a
dozen operations; on a CPU there is a kernel that reads them twice.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.models.rows import operations

if operations.is_available:
    from diffuspec.models.rows import _rows


def most_probable(
    logits: torch.Tensor, count: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the columns of each row's largest logits, and their logprobs, [N, count] each.

    logits [N, V]; the largest come first. A count above V is V.
    """
    count = min(count, logits.shape[-1])
    if operations.is_available and logits.device.type == "cpu":
        return _on_cpu(logits.float().contiguous(), count)
    logprobs, columns = logits.float().log_softmax(dim=-1).topk(count, dim=-1)
    return columns.int().cpu().numpy(), logprobs.cpu().numpy()


def _on_cpu(logits: torch.Tensor, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    columns = np.empty((len(logits), count), np.int32)
    logprobs = np.empty((len(logits), count), np.float32)
    _rows.find_largest(
        logits.data_ptr(),
        columns.ctypes.data,
        logprobs.ctypes.data,
        len(logits),
        logits.shape[1],
        count,
    )
    return columns, logprobs
