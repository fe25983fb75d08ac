"""How far float32 results may lie from exact ones, whatever a processor's order of sums."""

from __future__ import annotations

import torch

EPS = torch.finfo(torch.float32).eps  # twice the largest relative error of one rounding


def product_error(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The largest error of each number of `rows @ weight.T`, with or without fused operations.

    rows [N, K], weight [M, K], float64.
    """
    return (rows.abs() @ weight.abs().T) * (rows.shape[-1] * EPS)
