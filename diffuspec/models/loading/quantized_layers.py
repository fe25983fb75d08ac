"""Layers whose weights stay as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from diffuspec.models.loading.fast_layers import AnyLinear, RowsLinear, packed
from diffuspec.models.rows.products import Int8Matrix, RowsProduct, can_multiply
from diffuspec.models.rows.quantized import QuantizedMatrix, QuantizedProduct

StoredMatrix: TypeAlias = QuantizedMatrix | Int8Matrix | Tensor  # a tensor of any type


def linear_of(
    matrices: Sequence[StoredMatrix], bias: Tensor | None, dtype: torch.dtype
) -> AnyLinear:
    """Return a linear layer of matrices that are stored alike; their outputs one after another."""
    quantized = [one for one in matrices if isinstance(one, QuantizedMatrix)]
    if quantized:
        return RowsLinear(QuantizedProduct(quantized, bias, dtype))
    rounded = [one for one in matrices if isinstance(one, Int8Matrix)]
    if rounded:
        numbers, scales = (_joined(parts) for parts in zip(*rounded, strict=True))
        return RowsLinear(RowsProduct(Int8Matrix(numbers, scales), bias, dtype=dtype))
    weight = _joined([one for one in matrices if isinstance(one, Tensor)])
    keeps_type = dtype == torch.float32 and weight.itemsize == 2 and can_multiply(dtype)
    if keeps_type:
        return RowsLinear(RowsProduct(weight, bias, dtype=dtype))
    return packed(weight.to(dtype), bias, is_exact=True, may_round=False)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after another; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class RowsEmbedding(nn.Module):
    """Embeddings that stay as they are stored, and are widened as they are looked up."""

    def __init__(self, stored: QuantizedMatrix | RowsProduct | Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self._stored, self._dtype = stored, dtype
        # Models are asked for their type and device, which are those of their first parameter.
        self.like = nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """All embeddings in the type in which they are looked up; slow."""
        stored = self._stored
        num_ids = len(stored) if isinstance(stored, Tensor) else stored.num_outputs
        found: Tensor = self(torch.arange(num_ids))
        return found

    def forward(self, token_ids: Tensor) -> Tensor:
        flat, stored = token_ids.flatten(), self._stored
        rows = stored[flat] if isinstance(stored, Tensor) else stored.rows(flat)
        return rows.to(self._dtype).view(*token_ids.shape, -1)


def embedding_of(matrix: StoredMatrix, head: AnyLinear | None, dtype: torch.dtype) -> RowsEmbedding:
    """Return embeddings; `head` is a layer of the same matrix, so that it is not kept twice."""
    if isinstance(matrix, QuantizedMatrix):
        return RowsEmbedding(matrix, dtype)
    if isinstance(head, RowsLinear):
        return RowsEmbedding(head.product, dtype)
    if isinstance(matrix, Int8Matrix):
        return RowsEmbedding(RowsProduct(matrix, None, dtype=dtype), dtype)
    return RowsEmbedding(matrix.clone(), dtype)
