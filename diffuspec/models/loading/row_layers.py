"""Layers whose rows do not depend on which other rows are in a forward, to the last bit.

Elementwise kernels take the last elements of a thread's share in another way than the others,
and functions such as exp and cos then differ in the last bit.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.activations import ACT2CLS

_LANES = 64  # kernels take this many elements at a time, or fewer that divide it
_GRAIN = 1 << 15  # elements that no kernel divides among threads

_MIN_POSITIONS = 128  # loading tries some beyond a small model's

_ACTIVATIONS: tuple[Any, ...] = tuple(
    {one[0] if isinstance(one, tuple) else one for one in ACT2CLS.values()}
)


class RowwiseActivation(nn.Module):
    """An elementwise function, over so few rows at a time that none is divided among threads."""

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


class RotaryTable(nn.Module):
    """The cosines and sines of rotary positions, computed once for all positions below a limit.

    Some families choose them by the largest position: no sequence has more than `max_len`.
    """

    def __init__(
        self, rotary: nn.Module, max_len: int, num_positions: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        device = rotary.get_buffer("inv_freq").device
        like = torch.zeros(1, dtype=dtype, device=device)
        positions = torch.arange(max(num_positions, _MIN_POSITIONS), device=device)[None]
        parts = [rotary(like, part) for part in torch.split(positions, max_len, dim=1)]
        angles = [torch.cat(part) for part in parts]  # of some positions, [2, positions, dim]
        self._angles = torch.cat(angles, dim=1)

    def forward(self, _: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = self._angles.index_select(1, position_ids.flatten())
        cos, sin = angles.view(2, *position_ids.shape, -1)
        return cos, sin


@torch.inference_mode()
def use_rotary_tables(model: nn.Module, max_len: int, num_positions: int) -> None:
    """Replace rotary embeddings in place, which are computed at every forward otherwise.

    Sequences have up to max_len tokens. Rows that are not kept have positions up to num_positions.
    """
    dtype = next(model.parameters()).dtype
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_rotary(child):
                setattr(parent, name, RotaryTable(child, max_len, num_positions, dtype))


def use_row_layers(model: nn.Module) -> bool:
    """Replace activations in place, and return whether rows do not depend on each other now.

    Rotary embeddings must have been replaced.
    """
    is_on_gpu = next(model.parameters()).is_cuda  # whose elements are computed alike
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _ACTIVATIONS) and not is_on_gpu:
                setattr(parent, name, RowwiseActivation(child))
    return not any(hasattr(module, "inv_freq") for module in model.modules())


def _is_rotary(module: Any) -> bool:
    if not hasattr(module, "inv_freq"):
        return False
    return list(inspect.signature(module.forward).parameters) == ["x", "position_ids"]
