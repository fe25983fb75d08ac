"""Linear layers computed by cuBLAS, whose rows are bitwise independent of the other rows."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from diffuspec.models.layers.invariant_sizes import Product, agreeing_sizes, multiply_in_sizes


class CublasLinear(nn.Module):
    """A linear layer computed by cuBLAS.

    With is_exact, rows are multiplied in batches of the `agreeing_sizes`, if there are any.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, is_exact: bool) -> None:
        super().__init__()
        self.weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._sizes: tuple[int, ...] | None = None
        if is_exact:
            num_outputs, num_inputs = weight.shape
            self._sizes = agreeing_sizes(
                _product, num_inputs, num_outputs, weight.dtype, weight.device
            )

    @property
    def is_exact(self) -> bool:
        """Whether a row's output is bitwise independent of the other rows."""
        return self._sizes is not None

    def forward(self, inputs: Tensor) -> Tensor:
        if self._sizes is None:
            return functional.linear(inputs, self.weight, self._bias)
        outputs = multiply_in_sizes(_product(self.weight), inputs, self._sizes)
        # Separately from the product: cuBLAS may add a bias before or after rounding.
        return outputs if self._bias is None else outputs.add_(self._bias)


def _product(weight: Tensor) -> Product:
    return partial(functional.linear, weight=weight)
