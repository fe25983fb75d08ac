"""Rotary embeddings from a table, so that a row's angles do not depend on the other rows.

Elementwise kernels treat the last elements of a thread's share differently, and functions such as
cos then differ in the last bit; so they do between processors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_ROUNDED = {torch.cos, torch.sin, Tensor.cos, Tensor.sin, Tensor.__rpow__}
_MIN_POSITIONS = 128  # trials during loading may exceed a small model's positions


class RoundedAngles(TorchFunctionMode):
    """Rounds frequencies and angles from float64, to the same bits on every processor."""

    def __torch_function__(
        self, function: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in _ROUNDED or args[0].dtype != torch.float32:
            return function(*args, **(kwargs or {}))
        return function(args[0].double(), *args[1:]).float()


class RotaryTable(nn.Module):
    """The cosines and sines of all positions below a limit, computed once.

    Some families choose them by the largest position; no sequence is longer than `max_len`.
    """

    def __init__(
        self, rotary: nn.Module, max_len: int, num_positions: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        device = rotary.get_buffer("inv_freq").device
        like = torch.zeros(1, dtype=dtype, device=device)
        positions = torch.arange(max(num_positions, _MIN_POSITIONS), device=device)[None]
        with RoundedAngles():
            parts = [rotary(like, part) for part in torch.split(positions, max_len, dim=1)]
        angles = [torch.cat(part) for part in parts]  # each [2, positions, dim]
        self._angles = torch.cat(angles, dim=1)

    def forward(self, _: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = self._angles.index_select(1, position_ids.flatten())
        cos, sin = angles.view(2, *position_ids.shape, -1)
        return cos, sin


@torch.inference_mode()
def use_rotary_tables(model: nn.Module, max_len: int, num_positions: int) -> None:
    """Replace rotary embeddings in place; transformers computes them in every forward.

    Sequences have up to max_len tokens; scratch rows have positions up to num_positions.
    """
    dtype = next(model.parameters()).dtype
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_rotary(child):
                setattr(parent, name, RotaryTable(child, max_len, num_positions, dtype))


def _is_rotary(module: Any) -> bool:
    if not hasattr(module, "inv_freq"):
        return False
    return list(inspect.signature(module.forward).parameters) == ["x", "position_ids"]
