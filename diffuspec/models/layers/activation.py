"""Activations whose rows are bitwise independent of the other rows in a forward.

Elementwise kernels treat the last elements of a thread's share differently, and functions such as
exp then differ in the last bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.activations import ACT2CLS

_LANES = 64  # kernels process this many elements at a time, or a divisor of it
_GRAIN = 1 << 15  # number of elements that no kernel divides among threads

_ACTIVATIONS: tuple[Any, ...] = tuple(
    {one[0] if isinstance(one, tuple) else one for one in ACT2CLS.values()}
)


class ChunkedActivation(nn.Module):
    """An elementwise function, applied to so few rows at a time that threads are never used."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        width = inputs.shape[-1]
        if width % _LANES:
            padded = pad(inputs, (0, -width % _LANES))
            return self.forward(padded)[..., :width]
        if inputs.numel() <= _GRAIN:
            return self._compute(inputs)
        pieces = torch.split(inputs, max(1, _GRAIN // width), dim=-2)
        return torch.cat([self._compute(piece) for piece in pieces], dim=-2)

    def _compute(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.function(inputs)
        return output


def use_chunked_activations(model: nn.Module) -> bool:
    """Replace activations in place, and return whether rows are now independent.

    Rotary embeddings must have been replaced.
    """
    is_on_gpu = next(model.parameters()).is_cuda  # a GPU treats all elements alike
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _ACTIVATIONS) and not is_on_gpu:
                setattr(parent, name, ChunkedActivation(child))
    return not any(hasattr(module, "inv_freq") for module in model.modules())
