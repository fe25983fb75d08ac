"""Muon for a GPU: torch's, but matrices of one shape are orthogonalised together.

The layers of a model have few shapes. A step is then some batched products instead of fifteen small
ones for each matrix, which a GPU does not fill. State and results are those of `torch.optim.Muon`,
up to the rounding of bfloat16 products.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch


class BatchedMuon(torch.optim.Muon):
    """Muon with a batch of products for each shape."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change the parameters by their gradients; there is no closure."""
        assert closure is None, "the training loop computes the loss"
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._change(parameters, group)

    def _change(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        grads = [one.grad for one in parameters if one.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
        means = [state["momentum_buffer"] for state in states]
        torch._foreach_lerp_(means, grads, 1 - group["momentum"])
        updates = (
            torch._foreach_lerp(grads, means, group["momentum"]) if group["nesterov"] else means
        )
        batch = orthogonal(
            torch.stack(list(updates)), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rows, columns = parameters[0].shape
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        alpha = -group["lr"] * math.sqrt(max(1, rows / columns))
        torch._foreach_add_(parameters, list(batch.to(parameters[0].dtype)), alpha=alpha)


def orthogonal(
    matrices: torch.Tensor, coefficients: Sequence[float], num_steps: int, eps: float
) -> torch.Tensor:
    """Return nearly orthogonal matrices, [N, rows, columns] bfloat16, by Newton-Schulz steps."""
    a, b, c = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.bfloat16()
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
