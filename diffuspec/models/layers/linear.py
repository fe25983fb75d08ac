"""Faster layers for models; results agree up to rounding.

A step has 1 to 40 rows, and torch's matrix products on a CPU are slow at these shapes, most of all
on AMD processors and in bfloat16. `MatrixProduct` takes a third of the time on processors that
support it, and oneDNN with prepacked weights takes half. In float32 on Intel processors torch is
faster than oneDNN by a quarter for a single row, the step of plain decoding, and by a third for
small layers, so it is used there. Projections of the same input are computed as one product, and
norms in one operation instead of seven, on CPUs and GPUs alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffuspec.models.kernels import operations, products
from diffuspec.models.layers.gpu_linear import CublasLinear, GpuQuantizedLinear
from diffuspec.models.layers.invariant_sizes import agreeing_sizes, multiply_in_sizes

_MAX_PLAIN_WEIGHTS = 1 << 22  # largest layer kept in both layouts; a larger one would not benefit
_MAX_UNPACKED_WEIGHTS = 1 << 18  # largest layer that does not benefit from oneDNN's layout
_USUAL_ROWS = 16  # rows of a typical step, for which weights are packed

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def use_fast_layers(model: nn.Module, is_exact: bool = False, allow_int8: bool = False) -> bool:
    """Replace linear layers and norms in place where that is faster on this machine.

    With is_exact, returns whether rows of all matrix products are independent of each other, see
    `invariant_sizes`. With allow_int8, products may be computed in 8 bits.
    """
    dtype = next(model.parameters()).dtype
    device = next(model.parameters()).device
    if any(parameter.dtype != dtype for parameter in model.parameters()):
        return False
    if device.type == "cpu" and not _can_pack(dtype):
        return False
    replaces_norms = operations.can_run_on(device) and dtype in operations.TYPES
    for parent in list(model.modules()):
        for names in SIBLINGS:
            siblings: list[Any] = [getattr(parent, name, None) for name in names]
            if _can_fuse(siblings):
                fused = _fuse(siblings, is_exact, allow_int8)
                for name, sibling in zip(names, fused, strict=True):
                    setattr(parent, name, sibling)
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                layer = fastest_linear(child.weight, child.bias, is_exact, allow_int8)
                setattr(parent, name, layer)
            elif replaces_norms and (norm := _fused_norm(child)) is not None:
                setattr(parent, name, norm)
    return all(map(_has_independent_rows, model.modules()))


def _has_independent_rows(module: nn.Module) -> bool:
    if isinstance(module, AnyLinear | Sibling):
        return module.is_exact
    has_matrix = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    return isinstance(module, nn.Embedding) or not has_matrix


def needs_no_padding(model: nn.Module) -> bool:
    """Return whether no matrix product of a model benefits from padding to a typical size."""
    kinds = nn.Linear | AnyLinear
    layers = [
        module.product.layer if isinstance(module, Sibling) else module
        for module in model.modules()
        if isinstance(module, kinds | Sibling)
    ]
    return all(isinstance(layer, KernelLinear) for layer in layers)


def _can_pack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies matrices of this type on this machine."""
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
    """Return whether this machine has Intel processors; False if that is unknown."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


class _Product:
    """Multiplies rows with a weight matrix in oneDNN's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, num_rows: int = 1) -> None:
        """num_rows: batch size for which the layout is chosen; with 1, kernels agree most often."""
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)
        self._bias = bias

    def __call__(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self._bias, "none", [], ""
        )
        return output


class OneDnnLinear(nn.Module):
    """A linear layer with its weights in oneDNN's own layout.

    In float32 on Intel it also has them in torch's layout, or only in that if they are few.

    With is_exact, rows are multiplied in batches of the `agreeing_sizes`, if there are any.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, is_exact: bool = False) -> None:
        super().__init__()
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        is_float32 = weight.dtype == torch.float32
        may_be_plain = is_float32 and not is_exact and is_intel()
        keeps_plain = may_be_plain and weight.numel() <= _MAX_PLAIN_WEIGHTS
        self._plain_weight = weight if keeps_plain else None
        self._num_inputs, self._bias = weight.shape[1], bias
        self._multiply: _Product | None = None
        if not may_be_plain or weight.numel() > _MAX_UNPACKED_WEIGHTS:
            num_rows = _USUAL_ROWS if is_float32 and not is_exact else 1
            self._multiply = _Product(weight, bias, num_rows)
        self._sizes: tuple[int, ...] | None = None
        if is_exact:
            num_outputs, num_inputs = weight.shape
            self._sizes = agreeing_sizes(
                _Product, num_inputs, num_outputs, bias is not None, weight.dtype
            )

    @property
    def weight(self) -> Tensor:
        """The weights in torch's layout, whose type some families read. Slow: they are unpacked."""
        if self._plain_weight is not None:
            return self._plain_weight
        assert self._multiply is not None
        return self._multiply.weight.to_dense()

    @property
    def is_exact(self) -> bool:
        """Whether a row's output is bitwise independent of the other rows."""
        return self._sizes is not None

    def forward(self, inputs: Tensor) -> Tensor:
        multiply, plain_weight = self._multiply, self._plain_weight
        if multiply is None or (plain_weight is not None and inputs.numel() == self._num_inputs):
            assert plain_weight is not None
            return functional.linear(inputs, plain_weight, self._bias)
        if self._sizes is not None:
            return multiply_in_sizes(multiply, inputs, self._sizes)
        return multiply(inputs)


class KernelLinear(nn.Module):
    """A linear layer that uses our own product; always exact."""

    is_exact = True

    def __init__(self, product: products.MatrixProduct) -> None:
        super().__init__()
        self.product = product

    @property
    def weight(self) -> Tensor:
        """The weights in torch's layout, whose type some families read. Slow: they are unpacked."""
        return self.product.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.product(inputs)


AnyLinear: TypeAlias = OneDnnLinear | KernelLinear | CublasLinear | GpuQuantizedLinear


def fastest_linear(
    weight: Tensor, bias: Tensor | None, is_exact: bool, allow_int8: bool
) -> AnyLinear:
    """Return the fastest linear layer for a weight on its device."""
    if weight.is_cuda:
        return CublasLinear(weight, bias, is_exact)
    if products.can_multiply(weight.dtype, allow_int8):
        return KernelLinear(products.MatrixProduct(weight.detach(), bias, allow_int8))
    return OneDnnLinear(weight, bias, is_exact)


class _SiblingsProduct:
    """Linear layers with the same input, computed as one product when the first one is called."""

    def __init__(self, layer: AnyLinear, sizes: Sequence[int]) -> None:
        """`layer` has the outputs of all of them, concatenated."""
        self.layer, self.sizes = layer, list(sizes)
        self.is_exact = layer.is_exact
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


class FusedNorm(nn.Module):
    """An RMSNorm in one operation."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight.detach(), epsilon

    def forward(self, inputs: Tensor) -> Tensor:
        return operations.norm(inputs.contiguous(), self.weight, self.epsilon)


def _fuse(layers: Sequence[nn.Linear], is_exact: bool, allow_int8: bool) -> list[Sibling]:
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    weight = torch.cat([layer.weight for layer in layers])
    sizes = [layer.out_features for layer in layers]
    return siblings_of(fastest_linear(weight, bias, is_exact, allow_int8), sizes)


def siblings_of(layer: AnyLinear, sizes: Sequence[int]) -> list[Sibling]:
    """Return a layer as several layers with the same input, each with some of the outputs."""
    product = _SiblingsProduct(layer, sizes)
    return [Sibling(product, index) for index in range(len(sizes))]


def _can_fuse(layers: Sequence[Any]) -> bool:
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    return len({layer.bias is None for layer in layers}) == 1


@torch.inference_mode()
def _fused_norm(module: nn.Module) -> FusedNorm | None:
    """Return a FusedNorm if `module` computes the same, else None.

    Class names are not enough: families use them for different functions.
    """
    epsilon = getattr(module, "variance_epsilon", None)
    if not isinstance(epsilon, float):  # checked first, since a weight may have to be computed
        return None
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    if len(inspect.signature(module.forward).parameters) > 1:  # a gate, for example
        return None
    norm = FusedNorm(weight, epsilon)
    inputs = torch.linspace(-1, 2, 3 * len(weight)).view(3, -1).to(weight)
    tolerance = 4 * torch.finfo(weight.dtype).eps
    return norm if torch.allclose(module(inputs), norm(inputs), tolerance, tolerance) else None
