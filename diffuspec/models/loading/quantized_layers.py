"""Layers whose weights stay quantised in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from diffuspec.models.loading.fast_layers import RowsLinear
from diffuspec.models.rows.quantized import QuantizedMatrix, QuantizedProduct


class QuantizedLinear(RowsLinear):
    """A linear layer of matrices that stay quantised; their outputs one after another."""

    def __init__(
        self, matrices: Sequence[QuantizedMatrix], bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        nn.Module.__init__(self)
        self.product = QuantizedProduct(matrices, bias, dtype)


class RowsEmbedding(nn.Module):
    """Embeddings that stay as they are stored, and are widened as they are looked up."""

    def __init__(self, stored: QuantizedMatrix | Tensor, dtype: torch.dtype) -> None:
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
