"""Linear layers computed by cuBLAS, whose rows are bitwise independent of the other rows."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffuspec.models.layers.invariant_sizes import Product, agreeing_sizes, multiply_in_sizes


class CublasLinear(nn.Module):
    """A linear layer computed by cuBLAS.

    With is_exact, rows are multiplied in batches of the `agreeing_sizes`, if there are any. With
    is_partial, outputs are the sums in float32, not rounded to the type of the inputs.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, is_exact: bool, is_partial: bool = False
    ) -> None:
        super().__init__()
        self.weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._sizes: tuple[int, ...] | None = None
        self._is_wider = is_partial and weight.dtype != torch.float32
        self._make_product = _float32_product if self._is_wider else _product
        if is_exact:
            num_outputs, num_inputs = weight.shape
            self._sizes = agreeing_sizes(
                self._make_product, num_inputs, num_outputs, weight.dtype, weight.device
            )

    @property
    def is_exact(self) -> bool:
        """Whether a row's output is bitwise independent of the other rows."""
        return self._sizes is not None

    def forward(self, inputs: Tensor) -> Tensor:
        product = self._make_product(self.weight)
        if self._sizes is not None:
            outputs = multiply_in_sizes(product, inputs, self._sizes)
        elif self._is_wider:
            outputs = product(inputs)
        else:
            return functional.linear(inputs, self.weight, self._bias)
        # Separately from the product: cuBLAS may add a bias before or after rounding.
        return outputs if self._bias is None else outputs.add_(self._bias)


def _product(weight: Tensor) -> Product:
    return partial(functional.linear, weight=weight)


def _float32_product(weight: Tensor) -> Product:
    def multiply(inputs: Tensor) -> Tensor:
        outputs = torch.mm(inputs.flatten(0, -2), weight.t(), out_dtype=torch.float32)
        return outputs.view(*inputs.shape[:-1], -1)

    return multiply
