"""Faster layers for float32 models on CPUs; values agree up to rounding.

A step has 1 to 40 rows, and torch's own matrix products are slow at these shapes, most of all on
AMD processors. oneDNN's products over weights packed in advance take half the time. On Intel
processors torch's own are faster by a quarter for a single row, the step of plain decoding, and are
used there. Projections of the same input are computed as one product, and a norm in four small
operations instead of seven.
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

_MAX_PLAIN_WEIGHTS = 1 << 22  # of a layer that is kept in both layouts; larger ones gain nothing

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def use_cpu_layers(model: nn.Module) -> None:
    """Replace linear layers and RMS norms in place if the whole model is float32."""
    backend: Any = torch.backends.mkldnn
    is_float32 = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    if not (is_float32 and backend.is_available()):
        return
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            siblings: list[Any] = [getattr(parent, name, None) for name in names]
            if _can_fuse(siblings):
                for name, layer in zip(names, _fuse(siblings), strict=True):
                    setattr(parent, name, layer)
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif (norm := _fast_norm(child)) is not None:
                setattr(parent, name, norm)


@functools.cache
def is_intel() -> bool:
    """Whether this machine has Intel processors. False where the system does not tell."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


class PackedLinear(nn.Module):
    """A linear layer with its weights in oneDNN's own layout, on Intel also in torch's."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        keeps_plain = is_intel() and weight.numel() <= _MAX_PLAIN_WEIGHTS
        self._plain_weight = weight.detach() if keeps_plain else None
        self._num_inputs = weight.shape[1]
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self._bias = None if bias is None else bias.detach()

    @property
    def weight(self) -> Tensor:
        """The weights in torch's layout, which some families ask for their type; slow."""
        return self._weight.to_dense() if self._plain_weight is None else self._plain_weight

    def forward(self, inputs: Tensor) -> Tensor:
        if self._plain_weight is not None and inputs.numel() == self._num_inputs:
            return functional.linear(inputs, self._plain_weight, self._bias)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._weight, self._bias, "none", [], ""
        )
        return output


class _SiblingsProduct:
    """Linear layers of one input, computed as one product when the first of them is called."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        weights: list[Tensor] = [layer.weight for layer in layers]
        self._layer = PackedLinear(torch.cat(weights), bias)
        self._sizes = [layer.out_features for layer in layers]
        self._inputs: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def output(self, inputs: Tensor, index: int) -> Tensor:
        if self._inputs is not inputs:
            self._inputs, self._outputs = inputs, self._layer(inputs).split(self._sizes, -1)
        output = self._outputs[index]
        if index == len(self._sizes) - 1:
            self._inputs, self._outputs = None, ()
        return output


class _Sibling(nn.Module):
    def __init__(self, product: _SiblingsProduct, index: int) -> None:
        super().__init__()
        self._product, self._index = product, index

    def forward(self, inputs: Tensor) -> Tensor:
        return self._product.output(inputs, self._index)


class FastRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, with the norm |x| from one operation.

    Over n elements, sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(n * eps)) / sqrt(n).
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        size = len(weight)
        self.weight = weight.detach()
        self._weight = weight.detach() * size**0.5
        self._floor = torch.tensor((size * epsilon) ** 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
        return inputs.div(norm.hypot_(self._floor)).mul_(self._weight)


def _fuse(layers: Sequence[nn.Linear]) -> list[_Sibling]:
    product = _SiblingsProduct(layers)
    return [_Sibling(product, index) for index in range(len(layers))]


def _can_fuse(layers: Sequence[Any]) -> bool:
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    return len({layer.bias is None for layer in layers}) == 1


@torch.inference_mode()
def _fast_norm(module: nn.Module) -> FastRMSNorm | None:
    """Return a FastRMSNorm if `module` computes the same, else None.

    Class names do not tell: families use them for different functions.
    """
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or not isinstance(epsilon, float):
        return None
    if len(inspect.signature(module.forward).parameters) > 1:  # such as a gate
        return None
    norm = FastRMSNorm(weight, epsilon)
    inputs = torch.linspace(-1, 2, 3 * len(weight)).view(3, -1)
    return norm if torch.allclose(module(inputs), norm(inputs), atol=1e-5) else None
