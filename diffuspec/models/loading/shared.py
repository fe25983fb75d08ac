"""Weights that a drafter reads from its target's directory instead of storing them again.

The drafter's config.json names that directory as `embeddings_from`, relative to its own directory.
Its own matrices may be stored as int8, each with a float32 tensor `NAME_scale` of one scale per
row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.checkpoint import Checkpoint, weight_files

SHARED_KEY = "embeddings_from"
SCALE_SUFFIX = "_scale"
_LARGEST = 127


def read_with_shared(checkpoint: Checkpoint, config: Any) -> dict[str, torch.Tensor] | None:
    """Return the drafter's weights with the embeddings and head of its target.

    None if it stores all of its weights itself. Raises ModelLoadError.
    """
    source = checkpoint.config.get(SHARED_KEY)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelLoadError(
            f"{checkpoint.path}: {SHARED_KEY} must be a directory, got {source!r:.80}"
        )
    target = (checkpoint.path / source).resolve()
    if not target.is_dir():
        raise ModelLoadError(
            f"{checkpoint.path} shares the embeddings of {target} ({SHARED_KEY} in its "
            "config.json), which does not exist"
        )
    weights = from_int8(checkpoint.path, _read(checkpoint.path))
    names = set(_embedding_layers(config)[1].values()) - set(weights)
    found = _read(target, names)
    if missing := sorted(names - set(found)):
        raise ModelLoadError(f"{target} has no {missing[0]}, which {checkpoint.path} shares")
    return weights | found


def read_embeddings(path: Path) -> tuple[nn.Module, nn.Module]:
    """Read the embeddings and the head of a model directory. Raises ModelLoadError."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    layers, names = _embedding_layers(config)
    found = _read(path, set(names.values()))
    for layer in layers:
        for own, parameter in list(layer.named_parameters()):
            name = names[id(parameter)]
            if name not in found:
                raise ModelLoadError(f"{path} has no {name}")
            setattr(layer, own, nn.Parameter(found[name]))
    return layers


def to_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers from -127 to 127, and the scale of each row."""
    scale = matrix.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
    return (matrix / scale[:, None]).round().to(torch.int8), scale


def from_int8(path: Path, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a directory's weights, with those made by `to_int8` converted to float32.

    Raises ModelLoadError.
    """
    found = {}
    for name, tensor in weights.items():
        if tensor.dtype == torch.int8:
            scale = weights.get(name + SCALE_SUFFIX)
            if scale is None or len(scale) != len(tensor):
                raise ModelLoadError(f"{path}: {name} is stored as int8 without its scales")
            found[name] = tensor.float().mul_(scale[:, None])
        elif weights.get(name.removesuffix(SCALE_SUFFIX), tensor).dtype != torch.int8:
            found[name] = tensor
    return found


def _embedding_layers(config: Any) -> tuple[tuple[nn.Module, nn.Module], dict[int, str]]:
    """Return embeddings and head without weights, and their parameters' names by id."""
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        model = family(config)
    shared = (model.get_input_embeddings(), model.get_output_embeddings())
    ids = {id(parameter) for layer in shared for parameter in layer.parameters()}
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    return shared, {number: named[number] for number in ids}


def _read(path: Path, names: set[str] | None = None) -> dict[str, torch.Tensor]:
    """Read the tensors of a model directory, all or those with these names."""
    weights = {}
    for file in weight_files(path):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if names is None or name in names:
                    weights[name] = tensors.get_tensor(name)
    return weights
