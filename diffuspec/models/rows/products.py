"""Products of bfloat16 rows and a weight matrix, on a CPU that multiplies tiles (AMX).

Steps have few rows, and then the time goes on reading the weights. Packed in the order in which
they are read, they arrive a third faster than in oneDNN's layout, and 16 rows take little longer
than one. A row's output does not depend on the other rows, to the last bit.

In int8 there is half as much to read. Rows are rounded, too, each to 8 bits of its largest number:
good enough for drafts, which change no token.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from diffuspec.models.rows import operations
from diffuspec.models.rows.huge_pages import in_huge_pages

if operations.is_available:
    from diffuspec.models.rows import _rows

_LANES = 16  # outputs of a tile of weights
_BLOCK = 2 * _LANES
_LINE = 64  # bytes of inputs that a tile holds for each output


def is_available() -> bool:
    """Whether this processor multiplies tiles, and the system lets this process use them."""
    return operations.is_available and _rows.has_tiles()


class Matrix(ctypes.Structure):
    """Where a packed weight lies: see native/products.h."""

    _fields_ = (
        ("tiles", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("num_inputs", ctypes.c_int),
        ("num_outputs", ctypes.c_int),
    )


class RowsProduct:
    """inputs * weight^T + bias of bfloat16 inputs, for a weight [outputs, inputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, is_int8: bool = False) -> None:
        assert is_available(), "no tiles"
        num_outputs, num_inputs = weight.shape
        num_padded = -(-num_outputs // _BLOCK) * _BLOCK
        self._biases = torch.zeros(num_padded)
        if bias is not None:
            self._biases[:num_outputs] = bias
        self._scales: Tensor | None = None
        if is_int8:
            self._scales = torch.zeros(num_padded)
            weight, self._scales[:num_outputs] = _to_int8(weight)
        self._tiles = _pack(weight)
        self.matrix = Matrix(
            self._tiles.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            self._biases.data_ptr(),
            num_inputs,
            num_outputs,
        )
        self._address = ctypes.addressof(self.matrix)
        self._num_inputs, self._num_outputs = num_inputs, num_outputs

    @property
    def weight(self) -> Tensor:
        """The weight in torch's layout, bfloat16, [outputs, inputs]; slow."""
        weight = _unpack(self._tiles)[: self._num_outputs, : self._num_inputs]
        if self._scales is None:
            return weight
        return (weight * self._scales[: self._num_outputs, None]).bfloat16()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs, [..., outputs], of inputs [..., inputs]."""
        inputs = inputs.contiguous()
        outputs = inputs.new_empty(*inputs.shape[:-1], self._num_outputs)
        _rows.multiply(
            torch.get_num_threads(),
            self._address,
            inputs.data_ptr(),
            outputs.data_ptr(),
            inputs.numel() // self._num_inputs,
        )
        return outputs


def _to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight divided by the scales of its outputs, and the scales, [outputs]."""
    scales = weight.abs().amax(dim=1).float().clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def _pack(weight: Tensor) -> Tensor:
    """Return tiles, [blocks, steps, 2, 16, 16, group].

    A tile has 16 lines, each of which holds a group of four bytes of inputs for each of 16 outputs.
    A step takes the tiles of 32 outputs that are multiplied with the same inputs.
    """
    num_outputs, num_inputs = weight.shape
    size = weight.element_size()
    width, group = _LINE // size, 4 // size
    padding = (0, -num_inputs % width, 0, -num_outputs % _BLOCK)
    padded = torch.nn.functional.pad(weight, padding)
    parts = padded.view(-1, 2, _LANES, padded.shape[1] // width, width // group, group)
    return in_huge_pages(parts.permute(0, 3, 1, 4, 2, 5))


def _unpack(tiles: Tensor) -> Tensor:
    """Return the padded weight that `_pack` packed."""
    num_blocks, num_steps, _, num_groups, _, group = tiles.shape
    parts = tiles.permute(0, 2, 4, 1, 3, 5)
    return parts.reshape(num_blocks * _BLOCK, num_steps * num_groups * group)
