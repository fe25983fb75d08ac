"""Faster layers for models; results agree up to rounding.

A step has 1 to 40 rows, and torch's matrix products on a CPU are slow at these shapes, most of all
on AMD processors and in bfloat16: `MatrixProduct` takes a third of the time. Projections of the
same input are computed as one product, and norms in one operation instead of seven, on CPUs and
GPUs alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import MatrixProduct, Product
from diffuspec.models.tensor_parallel.layers import PartialLinear

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_MAX_AT_ONCE = 8  # modules whose layers are replaced at a time: each needs memory for two copies


def use_fast_layers(model: nn.Module, is_exact: bool = False, allow_int8: bool = False) -> bool:
    """Replace linear layers and norms in place where that is faster on this machine.

    With is_exact, returns whether rows of all matrix products are independent of each other. With
    allow_int8, products may be computed in 8 bits.
    """
    dtype = next(model.parameters()).dtype
    device = next(model.parameters()).device
    if any(parameter.dtype != dtype for parameter in model.parameters()):
        return False
    has_kernels = operations.can_run_on(device) and dtype in operations.TYPES
    if device.type == "cpu" and not has_kernels:
        return False
    replace = partial(
        _replace_layers, has_kernels=has_kernels, is_exact=is_exact, allow_int8=allow_int8
    )
    if device.type == "cpu":
        _map_in_threads(replace, list(model.modules()))
    else:
        for module in list(model.modules()):
            replace(module)
    return all(map(_has_independent_rows, model.modules()))


def _replace_layers(parent: nn.Module, has_kernels: bool, is_exact: bool, allow_int8: bool) -> None:
    """Replace the linear layers and norms directly below a module."""
    for names in SIBLINGS:
        siblings: list[Any] = [getattr(parent, name, None) for name in names]
        if _can_fuse(siblings):
            is_on_gpu = siblings[0].weight.is_cuda
            fused = _fuse(siblings, is_exact, allow_int8)
            for name, sibling in zip(names, fused, strict=True):
                setattr(parent, name, sibling)
            del siblings
            if is_on_gpu:  # else a second copy of all these weights stays reserved
                torch.cuda.empty_cache()
    for name, child in list(parent.named_children()):
        if type(child) is nn.Linear or type(child) is PartialLinear:
            is_partial = type(child) is PartialLinear
            layer = fastest_linear(child.weight, child.bias, is_exact, allow_int8, is_partial)
            setattr(parent, name, layer)
        elif has_kernels and (norm := _fused_norm(child)) is not None:
            setattr(parent, name, norm)


def _map_in_threads(replace: Callable[[nn.Module], None], modules: Sequence[nn.Module]) -> None:
    """Call a function for each module, in threads that compute with one thread each.

    With all threads for one module after the other, most of the time is spent waiting for them.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for threads that have not computed yet
    try:
        with ThreadPoolExecutor(min(num_threads, _MAX_AT_ONCE), "layers") as threads:
            list(threads.map(replace, modules))
    finally:
        torch.set_num_threads(num_threads)


def _has_independent_rows(module: nn.Module) -> bool:
    is_exact: bool | None = getattr(module, "is_exact", None)
    if is_exact is not None:
        return is_exact
    has_matrix = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    return isinstance(module, nn.Embedding) or not has_matrix


def has_torch_products(model: nn.Module) -> bool:
    """Return whether a linear layer of a model is torch's own."""
    return any(isinstance(module, nn.Linear) for module in model.modules())


class KernelLinear(nn.Module):
    """A linear layer that uses our own product; always exact."""

    is_exact = True

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.product = product

    @property
    def weight(self) -> Tensor:
        """The weights in torch's layout, whose type some families read. Slow: they are unpacked."""
        return self.product.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.product(inputs)


class _PartialKernelLinear(KernelLinear):
    """Returns float32, summed as the product does and not rounded."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.product(inputs.float())


class TorchLinear(nn.Module):
    """A linear layer that uses torch's product. With is_partial, it returns float32 sums."""

    is_exact = False

    def __init__(self, weight: Tensor, bias: Tensor | None, is_partial: bool = False) -> None:
        super().__init__()
        self.weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._is_wider = is_partial and weight.dtype != torch.float32

    def forward(self, inputs: Tensor) -> Tensor:
        if not self._is_wider:
            return functional.linear(inputs, self.weight, self._bias)
        rows = inputs.flatten(0, -2)
        outputs = torch.mm(rows, self.weight.t(), out_dtype=torch.float32)
        if self._bias is not None:
            outputs += self._bias
        return outputs.view(*inputs.shape[:-1], -1)


AnyLinear: TypeAlias = KernelLinear | TorchLinear


def fastest_linear(
    weight: Tensor, bias: Tensor | None, is_exact: bool, allow_int8: bool, is_partial: bool = False
) -> AnyLinear:
    """Return the fastest linear layer for a weight on its device.

    With is_partial, it returns its sums in float32, whatever the type of the weight.
    """
    if weight.is_cuda:
        return _linear_on_gpu(weight.detach(), bias, is_exact, is_partial)
    if is_partial:
        return _PartialKernelLinear(MatrixProduct(weight.detach(), bias, dtype=torch.float32))
    return KernelLinear(MatrixProduct(weight.detach(), bias, allow_int8))


def _linear_on_gpu(
    weight: Tensor, bias: Tensor | None, is_exact: bool, is_partial: bool
) -> AnyLinear:
    """Return a layer of our own product if there is one: in float32 it is slower than torch's."""
    can_multiply = operations.can_run_on(weight.device) and weight.dtype in operations.TYPES
    if not can_multiply or (weight.dtype == torch.float32 and not is_exact):
        return TorchLinear(weight, bias, is_partial)
    from diffuspec.models.kernels.triton.linear import LinearProduct  # imports Triton

    dtype = torch.float32 if is_partial else weight.dtype
    return KernelLinear(LinearProduct(weight, None if bias is None else bias.detach(), dtype))


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
    if weight.dim() != 1 or len(inspect.signature(module.forward).parameters) > 1:  # a gate
        return None
    norm = FusedNorm(weight, epsilon)
    inputs = torch.linspace(-1, 2, 3 * len(weight)).view(3, -1).to(weight)
    tolerance = 4 * torch.finfo(weight.dtype).eps
    return norm if torch.allclose(module(inputs), norm(inputs), tolerance, tolerance) else None
