"""Reads the directory of a trained draft head: config.json and a file of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import nn

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.shared import from_int8
from diffuspec.text.directory import read_json

SPECULATORS = "speculators_model_type"  # key that only vLLM's speculators write
_MODEL_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "max_position_embeddings",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "layer_types",
    "sliding_window",
)


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """The configuration and the weights in a directory; weights are on the CPU."""

    path: Path
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]

    @classmethod
    def read(cls, path: Path, pickled: Sequence[str]) -> Self:
        """Read model.safetensors or, if it is missing, the first of the pickled files named.

        Only tensors are read from pickled files: nothing in them is executed. Matrices may be
        stored as int8, as `drafter train` does. Raises ModelLoadError.
        """
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise ModelLoadError(f"directory {path} of a draft head {what}")
        config = read_json(path, "config.json")
        for name in ("model.safetensors", *pickled):
            if (path / name).is_file():
                return cls(path, config, from_int8(path, _read_weights(path / name)))
        raise ModelLoadError(f"{path} has no weights: model.safetensors or {' or '.join(pickled)}")

    def number(self, key: str, default: int | None = None) -> int:
        """Return a positive number from config.json. Raises ModelLoadError."""
        value = self.config.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.path}: {key} must be 1 or more, got {value!r}")
        return value

    def section(self, name: str) -> dict[str, Any]:
        """Return an object in config.json; an empty one if there is none."""
        section = self.config.get(name)
        return dict(section) if isinstance(section, Mapping) else {}

    def model_fields(self) -> dict[str, Any]:
        """Return what config.json says of the layers' sizes, in the keys of transformers.

        In vLLM's speculators it is below `transformer_layer_config`.
        """
        fields = {**self.config, **self.section("transformer_layer_config")}
        return {key: fields[key] for key in _MODEL_KEYS if fields.get(key) is not None}

    def check_size(self, key: str, found: object, wanted: int) -> None:
        """Raise ModelLoadError unless a number in config.json equals the target's."""
        if found != wanted:
            raise ModelLoadError(
                f"{self.path} was trained for another target: its {key} is {found!r}, the "
                f"target's {wanted}"
            )

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor of a given shape. Raises ModelLoadError if there is none."""
        tensor = self.weights.get(name)
        if tensor is None:
            raise ModelLoadError(f"{self.path} has no weights {name}")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{self.path} was trained for another target: {name} has the shape "
                f"{list(tensor.shape)}, for this target it would be {list(shape)}"
            )
        return tensor

    def fill(self, module: nn.Module, prefix: str = "") -> None:
        """Load the tensors named like the module's own, after a prefix. Raises ModelLoadError."""
        for name, parameter in module.named_parameters():
            parameter.data = self.take(prefix + name, *parameter.shape).to(parameter.dtype)


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors and torch may raise anything
        raise ModelLoadError(f"{file} cannot be read as tensors alone: {error}") from error
    if not isinstance(weights, Mapping):
        raise ModelLoadError(f"{file} holds a {type(weights).__name__}, not named tensors")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ModelLoadError(f"{file} holds something other than named tensors: {name!r}")
    return dict(weights)
