"""Norms, rotary embeddings, gated activations, attention and top-k over rows.

torch needs about 40 operations for this part of a decoder layer, and a step with few rows spends as
long on starting them as on reading the weights. A row's result is bitwise independent of the other
rows. Tensors have one of TYPES, and contiguous unless a docstring says otherwise. They are on the
CPU; norms, rotations and gates also on a GPU.
"""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.algorithm.transfers import to_host
from diffuspec.models.kernels.triton.availability import (
    IS_OF_USE,
    is_available as is_available_on_gpu,
)
from diffuspec.models.kernels.visible_columns import VisibleColumns

try:
    from diffuspec.models.kernels import _cpu
except ImportError:  # installed without a C++ compiler
    is_available = False
else:
    is_available = True

if IS_OF_USE:
    with contextlib.suppress(ImportError):  # torch without Triton: see `can_run_on`
        from diffuspec.models.kernels.triton import operations as gpu

KEY_BLOCK = 16  # columns whose keys are transposed together: kLanes in cpu/vectors.h
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # numbering of cpu/numbers.h


def norm(inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return inputs / sqrt(mean(inputs^2) + epsilon) * weight over the last dimension, [..., H]."""
    return _normalise(inputs, None, None, weight, epsilon)


def norm_of_sum(
    inputs: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs + added, and the `norm` of that."""
    sums = torch.empty_like(inputs)
    return sums, _normalise(inputs, added, sums, weight, epsilon)


def _normalise(
    inputs: torch.Tensor,
    added: torch.Tensor | None,
    sums: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    if inputs.is_cuda:
        return gpu.normalise(inputs, added, sums, weight, epsilon)
    outputs, width = torch.empty_like(inputs), len(weight)
    _cpu.normalise(
        TYPES[inputs.dtype],
        inputs.data_ptr(),
        0 if added is None else added.data_ptr(),
        weight.data_ptr(),
        0 if sums is None else sums.data_ptr(),
        outputs.data_ptr(),
        inputs.numel() // width,
        width,
        epsilon,
    )
    return outputs


def rotate(
    rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int, dim: int
) -> None:
    """Rotate the first num_heads * dim numbers of each row, [T, W], by its angles, [T, dim].

    The two halves of each head are rotated together, like transformers' `rotate_half`.
    """
    if rows.is_cuda:
        _rotate_by_torch(rows[:, : num_heads * dim].view(len(rows), -1, dim), cos, sin)
        return
    _cpu.rotate(
        TYPES[rows.dtype],
        rows.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        len(rows),
        rows.shape[1],
        num_heads,
        dim,
    )


def _rotate_by_torch(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate heads, [T, heads, dim]. On a GPU only trials do so: `Attention.attend_heads`."""
    x, y = heads.float().chunk(2, dim=-1)
    turned = torch.cat((-y, x), dim=-1) * sin[:, None].float()
    heads.copy_(heads.float() * cos[:, None].float() + turned)


def gate(inputs: torch.Tensor) -> torch.Tensor:
    """Return silu(gates) * values of rows [T, 2 * W] that hold W gates, then W values."""
    if inputs.is_cuda:
        return gpu.gate(inputs)
    num_rows, width = len(inputs), inputs.shape[1] // 2
    outputs = inputs.new_empty(num_rows, width)
    _cpu.gate(TYPES[inputs.dtype], inputs.data_ptr(), outputs.data_ptr(), num_rows, width)
    return outputs


def can_run_on(device: torch.device) -> bool:
    """Whether there are kernels for this kind of device."""
    return is_available_on_gpu() if device.type == "cuda" else is_available


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: NDArray[np.int32],
    output: torch.Tensor,
    rows: VisibleColumns,
    scaling: float,
    window: int | None,
    has_transposed_keys: bool = False,
) -> None:
    """Write the rows' keys and values into the cache, and their attention into the output.

    query [heads, T, dim], key and value [kv_heads, T, dim] of the whole segment, in any order of
    the first two dimensions; keys and values [num_pages, kv_heads, PAGE_SIZE, dim] of the cache, in
    which `pages` are those of the sequence; output [T, heads, dim]. With a window, a row at
    position p sees only columns above p - window. With has_transposed_keys, keys in the cache are
    transposed in blocks, [num_pages, kv_heads, PAGE_SIZE / KEY_BLOCK, dim, KEY_BLOCK].
    """
    if query.stride(2) != 1:
        query = query.contiguous()
    if key.stride(2) != 1 or value.stride() != key.stride():
        key, value = key.contiguous(), value.contiguous()
    size, first = query.element_size(), rows.first_row
    num_heads, _, dim = query.shape
    _cpu.attend(
        TYPES[query.dtype],
        torch.get_num_threads(),
        query.data_ptr() + first * query.stride(1) * size,
        query.stride(0),
        query.stride(1),
        key.data_ptr() + first * key.stride(1) * size,
        value.data_ptr() + first * key.stride(1) * size,
        key.stride(0),
        key.stride(1),
        keys.data_ptr(),
        values.data_ptr(),
        pages.__array_interface__["data"][0],
        keys.stride(0),
        keys.stride(1),
        output.data_ptr() + first * num_heads * dim * size,
        rows.num_rows,
        num_heads,
        keys.shape[1],
        dim,
        rows.start + first,
        rows.base,
        *rows.addresses,
        scaling,
        window or 0,
        has_transposed_keys,
    )


def most_probable(
    logits: torch.Tensor, count: int, column_ids: torch.Tensor | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the token ids of each row's largest logits, and their logprobs, [N, count] each.

    logits [N, V]; the largest come first. If count exceeds V, it counts as V. column_ids: the ids
    of the V columns; by default 0 to V - 1.

    torch passes over the logits once for the softmax and several times for the top-k, in half a
    dozen operations; the CPU kernel reads them twice.
    """
    count = min(count, logits.shape[-1])
    if is_available and logits.device.type == "cpu":
        ids, logprobs = _on_cpu(logits.float().contiguous(), count)
    else:
        logprobs, ids = logits.float().log_softmax(dim=-1).topk(count, dim=-1)
    if column_ids is not None:
        ids = column_ids[ids]
    both = to_host(torch.stack((ids.int(), logprobs.view(torch.int32))))  # one copy
    return both[0], both[1].view(np.float32)


def _on_cpu(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
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
