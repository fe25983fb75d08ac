"""The most probable columns of logits.

torch takes one pass over the logits for their softmax and several for a top-k, and starts half a
dozen operations; on a CPU there is a kernel that reads them twice.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.models.kernels import operations

if operations.is_available:
    from diffuspec.models.kernels import _cpu


def most_probable(
    logits: Tensor, count: int, column_ids: Tensor | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the token ids of each row's largest logits, and their logprobs, [N, count] each.

    logits [N, V]; the largest come first. A count above V is V. column_ids: the id of each of the V
    columns, unless they are 0 to V - 1.
    """
    count = min(count, logits.shape[-1])
    if operations.is_available and logits.device.type == "cpu":
        ids, logprobs = _on_cpu(logits.float().contiguous(), count)
    else:
        logprobs, ids = logits.float().log_softmax(dim=-1).topk(count, dim=-1)
    if column_ids is not None:
        ids = column_ids[ids]
    return ids.int().cpu().numpy(), logprobs.cpu().numpy()


def _on_cpu(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the columns of the largest logits, and their logprobs."""
    columns = torch.empty(len(logits), count, dtype=torch.int32)
    logprobs = torch.empty(len(logits), count)
    _cpu.find_largest(
        logits.data_ptr(),
        columns.data_ptr(),
        logprobs.data_ptr(),
        len(logits),
        logits.shape[1],
        count,
    )
    return columns, logprobs
