"""A quantised layer's tensors in a model directory, and the matrix built from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.kernels.quantized import MAX_GROUP, Groups, Layout
from diffuspec.models.kernels.triton.matrix import packing_for
from diffuspec.models.layers.quantized import AnyQuantized, matrix_of, slice_size
from diffuspec.models.loading.quantization import WORD
from diffuspec.models.loading.stored_tensors import StoredTensor

# Returns the numbers of outputs from a first one to before a last one, [outputs, inputs].
Unpack: TypeAlias = Callable[[int, int], Tensor]


class PackedLayer:
    """The tensors of a linear layer, by the suffixes of their names."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, int],
        tensors: dict[str, StoredTensor],
        path: Path,
        device: torch.device,
    ) -> None:
        """device: where to place tensors."""
        self.num_outputs, self.num_inputs = shape
        self._tensors, self._where, self._device = tensors, f"{path}: {name}", device

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, without reading the tensor. Raises ModelLoadError."""
        if name not in self._tensors:
            raise self.error(f"has no {name}")
        return self._tensors[name].shape

    def read(self, name: str, *shape: int) -> Tensor:
        """Return a tensor that must have this shape. Raises ModelLoadError."""
        if (found := self.shape(name)) != shape:
            raise self.error(f"has {name} of the shape {list(found)}, expected {list(shape)}")
        return self._tensors.pop(name).read().to(self._device)

    def read_words(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of 32-bit words. Raises ModelLoadError."""
        words = self.read(name, *shape)
        if words.dtype != torch.int32:
            raise self.error(f"has {name} in {words.dtype}, expected int32")
        return words

    def read_scales(self, name: str) -> Tensor:
        """Return two-dimensional scales. Raises ModelLoadError."""
        shape = self.shape(name)
        scales = self.read(name, *shape)
        if len(shape) > 2 or not scales.numel() or not scales.is_floating_point():
            raise self.error(f"has {name} of the shape {list(shape)} in {scales.dtype}")
        return scales if len(shape) == 2 else scales.reshape(-1, 1)

    def check_order(self, name: str, num_groups: int) -> None:
        """Raise ModelLoadError unless inputs are in the order of their groups."""
        if name not in self:
            return
        found = self.read(name, self.num_inputs)
        if not torch.equal(
            found.long().cpu(), torch.arange(self.num_inputs) // self._size(num_groups)
        ):
            raise self.error(
                f"has its inputs in another order (act-order, desc_act: true, by {name}), which is "
                "not supported: use a model quantised with desc_act: false (for compressed-tensors "
                "actorder null or weight), or a GGUF file"
            )

    def check_all_read(self) -> None:
        """Raise ModelLoadError if a tensor was not used."""
        if self._tensors:
            raise self.error(f"has tensors of no known use: {', '.join(sorted(self._tensors)[:3])}")

    def matrix(
        self, bits: int, scales: Tensor, zeros: Tensor | int, unpack: Unpack
    ) -> AnyQuantized:
        """Return the matrix with these scales and zeros, [outputs, groups] or [1, groups].

        Raises ModelLoadError.
        """
        size = self._size(scales.shape[1])
        group = max(one for one in range(WORD, MAX_GROUP + 1, WORD) if size % one == 0)
        ratio = size // group
        scales = _narrow(scales).expand(self.num_outputs, -1)
        zero, of_groups = (zeros, None) if isinstance(zeros, int) else self._zeros(zeros, scales)
        if of_groups is not None:
            of_groups = of_groups.repeat_interleave(ratio, dim=1)

        def slices() -> Iterator[Groups]:
            step = slice_size(self.num_inputs, self._device)
            for start in range(0, self.num_outputs, step):
                end = min(start + step, self.num_outputs)
                own = None if of_groups is None else of_groups[start:end]
                yield Groups(unpack(start, end), scales[start:end], zeros=own)

        layout = Layout(bits, group, ratio, zero, scales.dtype)
        is_on_cpu = self._device.type == "cpu"
        if not (is_on_cpu or packing_for(layout, self.num_inputs, of_groups is not None)):
            raise self.error(
                f"has groups of {size} inputs; a GPU multiplies those of a multiple of 16, "
                "others run on a CPU"
            )
        return matrix_of(layout, (self.num_outputs, self.num_inputs), slices(), self._device)

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._where} {what}")

    def _size(self, num_groups: int) -> int:
        """Return the number of inputs in a group. Raises ModelLoadError."""
        size, rest = divmod(self.num_inputs, num_groups)
        if rest or size % WORD:
            raise self.error(
                f"has {num_groups} groups for {self.num_inputs} inputs: groups must be equal, of a "
                f"multiple of {WORD} inputs"
            )
        return size

    def _zeros(self, zeros: Tensor, scales: Tensor) -> tuple[int, Tensor | None]:
        """Return the common zero of all groups, or each group's. Raises ModelLoadError."""
        least, most = int(zeros.min()), int(zeros.max())
        if least == most:
            return least, None
        if scales.dtype == torch.float32:  # products of zeros with such scales would be rounded
            raise self.error(
                "has scales in float32 and zero points, which is not supported: use a model "
                "quantised symmetrically, or one with scales in bfloat16 or float16"
            )
        if not -128 <= least <= most <= 127:
            raise self.error(
                f"has zero points from {least} to {most}, which do not fit into 8 bits: use a "
                "model quantised symmetrically"
            )
        return 0, zeros.to(torch.int8).expand(scales.shape)


def _narrow(scales: Tensor) -> Tensor:
    """Return scales in 16 bits if that is exact, else in float32."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(scales.to(dtype).to(scales.dtype), scales):
            return scales.to(dtype)
    return scales.float()
