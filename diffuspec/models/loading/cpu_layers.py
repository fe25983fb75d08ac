"""Faster layers for models on CPUs; values agree up to rounding.

A step has 1 to 40 rows, and torch's own matrix products are slow at these shapes, most of all on
AMD processors and in bfloat16. oneDNN's products over weights packed in advance take half the time.
In float32 on Intel processors torch's own are faster by a quarter for a single row, the step of
plain decoding, and are used there. Projections of the same input are computed as one product, and
norms in one operation instead of seven.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffuspec.models.invariant_rows import agreeing_sizes, multiply_in_sizes
from diffuspec.models.rows import operations

_MAX_PLAIN_WEIGHTS = 1 << 22  # of a layer that is kept in both layouts; larger ones gain nothing

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def use_cpu_layers(model: nn.Module, is_exact: bool = False) -> bool:
    """Replace linear layers and norms in place where this machine gains by it.

    With is_exact, rows of its matrix products do not depend on the other rows (`invariant_rows`)
    if the result is true.
    """
    dtype = next(model.parameters()).dtype
    if any(parameter.dtype != dtype for parameter in model.parameters()) or not _can_pack(dtype):
        return False
    replaces_norms = operations.is_available and dtype in operations.TYPES
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            siblings: list[Any] = [getattr(parent, name, None) for name in names]
            if _can_fuse(siblings):
                for name, layer in zip(names, _fuse(siblings, is_exact), strict=True):
                    setattr(parent, name, layer)
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias, is_exact))
            elif replaces_norms and (norm := _rows_norm(child)) is not None:
                setattr(parent, name, norm)
    return all(map(_has_independent_rows, model.modules()))


def _has_independent_rows(module: nn.Module) -> bool:
    if isinstance(module, PackedLinear):
        return module.is_exact
    if isinstance(module, Sibling):
        return module.is_exact
    has_matrix = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    return isinstance(module, nn.Embedding) or not has_matrix


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies matrices of this type on this machine."""
    backend: Any = torch.backends.mkldnn
    if not backend.is_available():
        return False
    is_supported: dict[torch.dtype, Any] = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype == torch.float32 or (dtype in is_supported and bool(is_supported[dtype]()))


@functools.cache
def is_intel() -> bool:
    """Whether this machine has Intel processors. False where the system does not tell."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


class _Product:
    """Rows times a weight matrix in oneDNN's own layout, the one for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # Packed for one row, weights have kernels that agree at more numbers of rows.
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        self._bias = bias

    def __call__(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self._bias, "none", [], ""
        )
        return output


class PackedLinear(nn.Module):
    """A linear layer with its weights in oneDNN's own layout, in float32 on Intel also in torch's.

    With is_exact, rows are multiplied in the numbers of `agreeing_sizes`, if there are any.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, is_exact: bool = False) -> None:
        super().__init__()
        is_small = weight.dtype == torch.float32 and weight.numel() <= _MAX_PLAIN_WEIGHTS
        keeps_plain = not is_exact and is_small and is_intel()
        self._plain_weight = weight.detach() if keeps_plain else None
        self._num_inputs = weight.shape[1]
        self._multiply = _Product(weight.detach(), None if bias is None else bias.detach())
        self._bias = None if bias is None else bias.detach()
        self._sizes: tuple[int, ...] | None = None
        if is_exact:
            num_outputs, num_inputs = weight.shape
            self._sizes = agreeing_sizes(
                _Product, num_inputs, num_outputs, bias is not None, weight.dtype
            )

    @property
    def weight(self) -> Tensor:
        """The weights in torch's layout, which some families ask for their type; slow."""
        return (
            self._multiply.weight.to_dense() if self._plain_weight is None else self._plain_weight
        )

    @property
    def is_exact(self) -> bool:
        """Whether a row's output is the same to the last bit, whatever other rows there are."""
        return self._sizes is not None

    def forward(self, inputs: Tensor) -> Tensor:
        if self._sizes is not None:
            return multiply_in_sizes(self._multiply, inputs, self._sizes)
        if self._plain_weight is not None and inputs.numel() == self._num_inputs:
            return functional.linear(inputs, self._plain_weight, self._bias)
        return self._multiply(inputs)


class _SiblingsProduct:
    """Linear layers of one input, computed as one product when the first of them is called."""

    def __init__(self, layers: Sequence[nn.Linear], is_exact: bool) -> None:
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        weights: list[Tensor] = [layer.weight for layer in layers]
        self.layer = PackedLinear(torch.cat(weights), bias, is_exact)
        self.is_exact = self.layer.is_exact
        self.sizes = [layer.out_features for layer in layers]
        self._inputs: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def output(self, inputs: Tensor, index: int) -> Tensor:
        if self._inputs is not inputs:
            self._inputs, self._outputs = inputs, self.layer(inputs).split(self.sizes, -1)
        output = self._outputs[index]
        if index == len(self.sizes) - 1:
            self._inputs, self._outputs = None, ()
        return output


class Sibling(nn.Module):
    def __init__(self, product: _SiblingsProduct, index: int) -> None:
        super().__init__()
        self.product, self._index = product, index
        self.is_exact = product.is_exact

    def forward(self, inputs: Tensor) -> Tensor:
        return self.product.output(inputs, self._index)


class RowsNorm(nn.Module):
    """An RMSNorm in one operation."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight.detach(), epsilon

    def forward(self, inputs: Tensor) -> Tensor:
        return operations.norm(inputs.contiguous(), self.weight, self.epsilon)


def _fuse(layers: Sequence[nn.Linear], is_exact: bool) -> list[Sibling]:
    product = _SiblingsProduct(layers, is_exact)
    return [Sibling(product, index) for index in range(len(layers))]


def _can_fuse(layers: Sequence[Any]) -> bool:
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    return len({layer.bias is None for layer in layers}) == 1


@torch.inference_mode()
def _rows_norm(module: nn.Module) -> RowsNorm | None:
    """Return a RowsNorm if `module` computes the same, else None.

    Class names do not tell: families use them for different functions.
    """
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or not isinstance(epsilon, float):
        return None
    if len(inspect.signature(module.forward).parameters) > 1:  # such as a gate
        return None
    norm = RowsNorm(weight, epsilon)
    inputs = torch.linspace(-1, 2, 3 * len(weight)).view(3, -1).to(weight.dtype)
    tolerance = 4 * torch.finfo(weight.dtype).eps
    return norm if torch.allclose(module(inputs), norm(inputs), tolerance, tolerance) else None
