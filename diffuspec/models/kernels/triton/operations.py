"""Norms and gated activations of rows on a GPU, for `kernels.operations`.

A row's result is bitwise independent of the other rows, unlike with torch's own mean.
"""

from __future__ import annotations

import torch
import triton

from diffuspec.models.kernels.triton import kernels

_GATE_SIZE = 1024  # gates of a row per program


def normalise(
    inputs: torch.Tensor,
    added: torch.Tensor | None,
    sums: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    outputs, width = torch.empty_like(inputs), len(weight)
    adds = added is not None
    kernels.normalise[(inputs.numel() // width,)](
        inputs,
        added if adds else inputs,
        weight,
        sums if adds else outputs,
        outputs,
        width,
        epsilon,
        ADDS=adds,
        WIDTH=triton.next_power_of_2(width),
    )
    return outputs


def gate(inputs: torch.Tensor) -> torch.Tensor:
    num_rows, width = len(inputs), inputs.shape[1] // 2
    outputs = inputs.new_empty(num_rows, width)
    kernels.gate[(num_rows, triton.cdiv(width, _GATE_SIZE))](
        inputs, outputs, width, SIZE=_GATE_SIZE
    )
    return outputs
