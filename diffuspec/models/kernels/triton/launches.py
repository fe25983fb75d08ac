"""Launches products of quantised weights on a GPU, and joins their splits.

The number of splits of a sum depends only on the shape of the weight.
"""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor

from diffuspec.models.kernels.triton import quantized_kernels as kernels

NUM_WARPS = 8
NUM_PROGRAMS = 400  # programs per launch: about three for each multiprocessor of an H100
_MIN_CHUNKS = 2  # chunks in the smallest split
_JOINED = 1024  # outputs per program
_STAGES = (3, 2)
_SHARED_BYTES = 99 * 1024  # shared memory of a program on the smallest of recent GPUs


def splits_for(num_blocks: int, num_chunks: int, num_programs: int) -> tuple[int, int]:
    """Return the number of splits of a weight's inputs, and the number of chunks in each.

    num_programs: how many programs there should be, each for a split and a block of outputs.
    """
    wanted = -(-num_programs // num_blocks)
    most = max(1, min(wanted, num_chunks // _MIN_CHUNKS))
    per_split = -(-num_chunks // most)
    return -(-num_chunks // per_split), per_split


def num_stages_for(weight_bytes: int, row_bytes: int, device: torch.device) -> int:
    """Return the number of steps to prefetch, leaving room for a second program if possible."""
    room = shared_bytes(device)
    for stages in _STAGES:
        if (stages - 1) * (weight_bytes + row_bytes) + row_bytes <= room // 2:
            return stages
    return 2 if weight_bytes + 2 * row_bytes <= room else 1


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory that a program can have."""
    if device.type != "cuda":  # Triton's interpreter
        return _SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", _SHARED_BYTES))


def join_splits(
    sums: Tensor,
    outputs: Tensor,
    *,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    has_gates: bool = False,
    scales: Tensor | None = None,
    row_scales: Tensor | None = None,
) -> None:
    """Sum splits, [splits, T, outputs], one after another; write the sums with scales and bias.

    scales [outputs] and row_scales [T]. added: numbers to add, with the strides of the outputs.
    has_gates: write silu(gates) * values; there are twice as many sums, the gates first.
    """
    num_splits, num_rows, _ = sums.shape
    num_outputs = outputs.shape[1]
    assert added is None or added.stride() == outputs.stride()
    kernels.add_splits[(num_rows, triton.cdiv(num_outputs, _JOINED))](
        sums,
        *(sums if given is None else given for given in (scales, row_scales, bias, added)),
        outputs,
        num_outputs,
        sums.stride(0),
        outputs.stride(0),
        SPLITS=num_splits,
        HAS_SCALES=scales is not None,
        HAS_BIAS=bias is not None,
        ADDS=added is not None,
        GATES=has_gates,
        SIZE=_JOINED,
    )
