"""A causal LM whose weights stay in the format of a GGUF file or a quantised directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.memory import release_freed
from diffuspec.models.attention.interface import ATTENTION_NAME
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.quantized import can_multiply
from diffuspec.models.layers.linear import SIBLINGS, AnyLinear, siblings_of
from diffuspec.models.layers.quantized import (
    StoredEmbedding,
    StoredMatrix,
    embedding_of,
    linear_of,
    moved,
)
from diffuspec.models.layers.rotary import RoundedAngles
from diffuspec.models.loading.backend import Backend


class StoredWeights(Protocol):
    """Weights by their names in transformers' models; each is read once."""

    def __contains__(self, name: str) -> bool: ...

    def matrix(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        """Return a weight as stored; a tensor may be memory-mapped. Raises ModelLoadError."""
        ...

    def vector(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an unquantised tensor in a type, in its own memory. Raises ModelLoadError."""
        ...

    def check_all_read(self) -> None:
        """Raise ModelLoadError if a tensor was not used."""
        ...


def check_can_stay_quantized(
    path: Path, what: str, dtype: torch.dtype, device: torch.device, num_ranks: int, instead: str
) -> None:
    """Raise ModelLoadError unless quantised weights can be run here; `what` names them."""
    if num_ranks > 1:
        raise ModelLoadError(f"{path}: {what} cannot be spread over {num_ranks} ranks: {instead}")
    if device.type != "cpu":
        if operations.can_run_on(device):
            return
        raise ModelLoadError(
            f"{path}: {what} is run on {device.type} by diffuspec's kernels in Triton, which do "
            f"not run here: install Triton and a C compiler, run it on a CPU, or {instead}"
        )
    if not can_multiply(dtype):
        raise ModelLoadError(
            f"{path}: {what} is run by diffuspec's kernels, which were not compiled: reinstall it "
            f"where there is a C++ compiler, or {instead}"
        )


def empty_model(path: Path, config: Any, dtype: torch.dtype) -> Any:
    """Return a causal LM without weights, but with its buffers. Raises ModelLoadError."""
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    try:
        with init_empty_weights(include_buffers=False), RoundedAngles():
            model = family._from_config(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    except Exception as error:  # model families may raise anything
        raise ModelLoadError(f"{path}: {_unsupported(config)}: {error!r}") from error
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(embeddings) is not nn.Embedding or type(head) is not nn.Linear:
        raise ModelLoadError(
            f"{path}: {_unsupported(config)}: its embeddings are a {type(embeddings).__name__}, "
            f"its head is a {type(head).__name__}"
        )
    return model.eval()


def _unsupported(config: Any) -> str:
    return f"{config.model_type} is not supported with quantised weights"


def fill(model: Any, weights: StoredWeights, backend: Backend) -> None:
    """Read the weights of an empty model onto a device. Raises ModelLoadError."""
    _Filling(model, weights, backend).fill()
    weights.check_all_read()
    release_freed()
    model.requires_grad_(False).to(backend.device)  # moves the buffers


class _Filling:
    def __init__(self, model: Any, weights: StoredWeights, backend: Backend) -> None:
        self._model, self._weights, self._backend = model, weights, backend
        self._dtype, self._device = backend.dtype, backend.device
        self._names = {id(module): name for name, module in model.named_modules()}

    def fill(self) -> None:
        self._fill_outer()  # first, because they are large and temporarily in memory twice
        for prefix, parent in list(self._model.named_modules()):
            if type(parent) in (nn.Linear, StoredEmbedding):  # already replaced or filled
                continue
            if self._fill_siblings(prefix, parent):
                release_freed()  # frees the gaps between small tensors
            for own, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    [layer] = self._linears([f"{prefix}.{own}".strip(".")], [child])
                    setattr(parent, own, layer)
            for own, parameter in list(parent.named_parameters(recurse=False)):
                found = self._vector(f"{prefix}.{own}".strip("."), tuple(parameter.shape))
                setattr(parent, own, nn.Parameter(found, requires_grad=False))

    def _fill_outer(self) -> None:
        """Read embeddings and head, which may be the same matrix."""
        model = self._model
        embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
        name, head_name = self._names[id(embeddings)], self._names[id(head)]
        shape = embeddings.num_embeddings, embeddings.embedding_dim
        found = self._matrix(name, shape)
        if f"{head_name}.weight" in self._weights or not model.config.tie_word_embeddings:
            model.set_input_embeddings(embedding_of(found, None, self._dtype))
            [layer] = self._linears([head_name], [head])
        else:
            layer = self._linear([found], [head_name], [head])
            model.set_input_embeddings(embedding_of(found, layer, self._dtype))
        model.set_output_embeddings(layer)

    def _fill_siblings(self, prefix: str, parent: nn.Module) -> bool:
        """Read layers with the same input, as one layer if they have the same format."""
        has_siblings = False
        for owns in SIBLINGS:
            layers: list[Any] = [getattr(parent, own, None) for own in owns]
            if all(type(layer) is nn.Linear for layer in layers):
                has_siblings = True
                found = self._linears([f"{prefix}.{own}" for own in owns], layers)
                for own, layer in zip(owns, found, strict=True):
                    setattr(parent, own, layer)
        return has_siblings

    def _linears(self, names: Sequence[str], layers: Sequence[nn.Linear]) -> list[nn.Module]:
        """Return the layers that replace empty ones with the same input."""
        matrices = [
            self._matrix(name, (layer.out_features, layer.in_features))
            for name, layer in zip(names, layers, strict=True)
        ]
        has_biases = {
            self._has_bias(name, layer) for name, layer in zip(names, layers, strict=True)
        }
        if len(layers) > 1 and len(set(map(type, matrices))) == 1 and len(has_biases) == 1:
            whole = self._linear(matrices, names, layers)
            return [*siblings_of(whole, [layer.out_features for layer in layers])]
        return [
            self._linear([matrix], [name], [layer])
            for name, layer, matrix in zip(names, layers, matrices, strict=True)
        ]

    def _linear(
        self, matrices: Sequence[StoredMatrix], names: Sequence[str], layers: Sequence[nn.Linear]
    ) -> AnyLinear:
        bias = self._bias(names, layers)
        return linear_of(matrices, bias, self._dtype, self._backend.quantizes_activations)

    def _bias(self, names: Sequence[str], layers: Sequence[nn.Linear]) -> Tensor | None:
        """Return the concatenated biases of layers, if they have any."""
        found = [
            self._vector(f"{name}.bias", (layer.out_features,))
            for name, layer in zip(names, layers, strict=True)
            if self._has_bias(name, layer)
        ]
        return torch.cat(found) if found else None

    def _matrix(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        return moved(self._weights.matrix(f"{name}.weight", shape), self._device)

    def _vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._weights.vector(name, shape, self._dtype).to(self._device)

    def _has_bias(self, name: str, layer: nn.Linear) -> bool:
        """Return whether a layer has a bias: quantised ones may, even if their family has none."""
        return layer.bias is not None or f"{name}.bias" in self._weights
