"""Weighted cross-entropy through a head that is not trained, without keeping logits.

Logits of a slice of rows become their own gradient at once: the head is linear and the loss a sum,
so the gradient of the hidden states is known before anything asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear
from torch.utils._triton import has_triton

ROWS_ON_CPU, ROWS_ON_GPU = 512, 8192  # rows of a slice: its logits stay in a CPU's cache


def weighted_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    columns: torch.Tensor,
    shares: torch.Tensor,
) -> torch.Tensor:
    """Return the sum of shares times the cross-entropies of columns, float32.

    hidden [R, H]; weight [V, H] and bias [V], not trained; columns [R, n], -1: none; shares [R, n].
    """
    loss: torch.Tensor = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, columns, shares
    )
    return loss


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        columns: torch.Tensor,
        shares: torch.Tensor,
    ) -> torch.Tensor:
        is_fused = hidden.is_cuda and has_triton()
        slice_loss = _fused() if is_fused else _slice_loss
        size = ROWS_ON_GPU if hidden.is_cuda else ROWS_ON_CPU
        shares = torch.where(columns >= 0, shares, 0.0).float()
        columns = columns.clamp(min=0)
        gradient, loss = torch.empty_like(hidden), hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            logits = linear(hidden[rows], weight, bias)
            part, slope = slice_loss(logits, columns[rows], shares[rows])
            loss += part
            gradient[rows] = slope @ weight.to(slope.dtype)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None


def _slice_loss(
    logits: torch.Tensor, columns: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of rows of logits and its gradient, of the logits' type."""
    total = shares.sum(-1)
    norm = logits.float().logsumexp(-1)
    loss = (total * norm).sum() - (shares * logits.gather(1, columns).float()).sum()
    slope = (logits.float() - norm[:, None]).exp_().mul_(total[:, None]).to(logits.dtype)
    return loss, slope.scatter_add_(1, columns, -shares.to(slope.dtype))


@cache
def _fused() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Compiled, the logits are read twice and written once."""
    return torch.compile(_slice_loss)
