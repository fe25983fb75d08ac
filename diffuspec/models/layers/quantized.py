"""Stored matrices in the layout of the device that multiplies them, and their layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from diffuspec.models.kernels import quantized
from diffuspec.models.kernels.products import Int8Matrix, MatrixProduct
from diffuspec.models.kernels.quantized import Groups, Layout, QuantizedMatrix, QuantizedProduct
from diffuspec.models.kernels.triton import matrix as on_gpu
from diffuspec.models.kernels.triton.matrix import GpuMatrix
from diffuspec.models.layers.linear import AnyLinear, KernelLinear, fastest_linear

if TYPE_CHECKING:
    from diffuspec.models.kernels.triton.products import Int8Product

_CPU = torch.device("cpu")
AnyQuantized: TypeAlias = QuantizedMatrix | GpuMatrix
StoredMatrix: TypeAlias = AnyQuantized | Int8Matrix | Tensor  # a tensor of any type


def matrix_of(
    layout: Layout, shape: tuple[int, ...], slices: Iterable[Groups], device: torch.device
) -> AnyQuantized:
    """Return a matrix from slices of its outputs, each of `slice_size` outputs except the last."""
    if device.type == "cpu":
        return QuantizedMatrix(layout, shape, slices)
    return GpuMatrix(layout, shape, slices, device)


def slice_size(num_inputs: int, device: torch.device) -> int:
    """Return the number of outputs to unpack at a time."""
    if device.type == "cpu":
        return quantized.slice_size(num_inputs)
    return on_gpu.slice_size(num_inputs)


def moved(matrix: StoredMatrix, device: torch.device) -> StoredMatrix:
    """Return a matrix on a device; matrices quantised in groups are already there."""
    if isinstance(matrix, Int8Matrix):
        return Int8Matrix(*(field.to(device) for field in matrix))
    return matrix.to(device) if isinstance(matrix, Tensor) else matrix


def linear_of(
    matrices: Sequence[StoredMatrix],
    bias: Tensor | None,
    dtype: torch.dtype,
    quantize_activations: bool,
) -> AnyLinear:
    """Return a linear layer of matrices in the same format, with their outputs concatenated.

    quantize_activations: round inputs to 8 bits, for weights quantised in groups on a CPU.
    """
    quantized = [one for one in matrices if isinstance(one, QuantizedMatrix)]
    if quantized:
        return KernelLinear(QuantizedProduct(quantized, bias, dtype, quantize_activations))
    on_gpu = [one for one in matrices if isinstance(one, GpuMatrix)]
    if on_gpu:
        from diffuspec.models.kernels.triton.products import GroupsProduct  # imports Triton

        return KernelLinear(GroupsProduct(on_gpu, bias, dtype))
    rounded = [one for one in matrices if isinstance(one, Int8Matrix)]
    if rounded:
        whole = Int8Matrix(*(_joined(parts) for parts in zip(*rounded, strict=True)))
        return KernelLinear(_int8_product(whole, bias, dtype))
    weight = _joined([one for one in matrices if isinstance(one, Tensor)])
    if dtype == torch.float32 and weight.itemsize == 2 and not weight.is_cuda:
        return KernelLinear(MatrixProduct(weight, bias, dtype=dtype))
    return fastest_linear(weight.to(dtype), bias, is_exact=True, allow_int8=False)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _HasRows(Protocol):
    """A stored matrix that can widen some of its rows."""

    num_outputs: int

    def rows(self, outputs: Tensor) -> Tensor: ...


class StoredEmbedding(nn.Module):
    """Embeddings that stay in their stored format, and are widened on look-up."""

    def __init__(self, stored: _HasRows | Tensor, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._stored, self._dtype = stored, dtype
        # A model's type and device are taken from its first parameter.
        like = torch.empty(0, dtype=dtype, device=device)
        self.like = nn.Parameter(like, requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """All embeddings in the type of look-ups. Slow: they are widened."""
        stored = self._stored
        num_ids = len(stored) if isinstance(stored, Tensor) else stored.num_outputs
        found: Tensor = self(torch.arange(num_ids, device=self.like.device))
        return found

    def forward(self, token_ids: Tensor) -> Tensor:
        flat, stored = token_ids.flatten(), self._stored
        rows = stored[flat] if isinstance(stored, Tensor) else stored.rows(flat)
        return rows.to(self._dtype).view(*token_ids.shape, -1)


def embedding_of(
    matrix: StoredMatrix, head: AnyLinear | None, dtype: torch.dtype
) -> StoredEmbedding:
    """Return embeddings; `head` is a layer with the same matrix, which is then shared."""
    if isinstance(matrix, GpuMatrix):
        return StoredEmbedding(matrix, dtype, matrix.device)
    if isinstance(matrix, QuantizedMatrix):
        return StoredEmbedding(matrix, dtype, _CPU)
    if isinstance(head, KernelLinear) and isinstance(head.product, MatrixProduct):
        return StoredEmbedding(head.product, dtype, _CPU)
    if isinstance(matrix, Tensor) and matrix.is_cuda and head is not None:
        return StoredEmbedding(head.weight, dtype, matrix.device)
    if isinstance(matrix, Int8Matrix):
        return StoredEmbedding(_int8_product(matrix, None, dtype), dtype, matrix.numbers.device)
    return StoredEmbedding(matrix if matrix.is_cuda else matrix.clone(), dtype, matrix.device)


def _int8_product(
    matrix: Int8Matrix, bias: Tensor | None, dtype: torch.dtype
) -> MatrixProduct | Int8Product:
    if matrix.numbers.is_cuda:
        from diffuspec.models.kernels.triton.products import Int8Product  # imports Triton

        return Int8Product(matrix, bias, dtype)
    return MatrixProduct(matrix, bias, dtype=dtype)
