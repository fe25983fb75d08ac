"""A causal LM of given sizes with drawn weights: its calls take as long as those of a trained one.

Nothing is read but a config.json, and weights are drawn on the device that runs them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.backend import Backend
from diffuspec.models.loading.checkpoint import Checkpoint, check_family
from diffuspec.models.loading.stored_model import empty_model
from diffuspec.models.loading.transformers_model import transformers_config

_SCALE = 0.02  # standard deviation of weights, as models are usually initialised


def inspect_sizes(path: Path) -> Checkpoint:
    """Return the checkpoint that a config.json describes. Raises ModelLoadError."""
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        check_family(path, config)
        checkpoint = Checkpoint(path, config, num_weights=0, is_drawn=True)
        model = _empty(checkpoint, transformers_config(checkpoint), torch.bfloat16)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ModelLoadError(f"{path} is no configuration of a model: {error}") from error
    return Checkpoint(path, config, sum(map(Tensor.numel, model.parameters())), is_drawn=True)


def draw_model(checkpoint: Checkpoint, config: Any, backend: Backend) -> Any:
    """Return a causal LM whose weights are drawn on the backend's device."""
    model = _empty(checkpoint, config, backend.dtype)
    generator = torch.Generator(backend.device).manual_seed(0)
    drawn: dict[nn.Parameter, nn.Parameter] = {}  # embeddings and head may be the same
    for module in model.modules():
        for name, empty in list(module.named_parameters(recurse=False)):
            if empty not in drawn:
                weight = torch.empty_like(empty, device=backend.device)
                mean = 1.0 if "norm" in type(module).__name__.lower() else 0.0
                weight.normal_(mean, _SCALE, generator=generator)
                drawn[empty] = nn.Parameter(weight, requires_grad=False)
            setattr(module, name, drawn[empty])
    return model.to(backend.device)


def _empty(checkpoint: Checkpoint, config: Any, dtype: torch.dtype) -> Any:
    model = empty_model(checkpoint.path, config, dtype)
    if config.tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return model
