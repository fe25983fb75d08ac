"""A model whose weights transformers reads: those of a plain model directory, in one type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.interface import ATTENTION_NAME
from diffuspec.models.layers.draft_head import HEAD_TOKEN_IDS, use_draft_head
from diffuspec.models.layers.rotary import RoundedAngles
from diffuspec.models.loading.backend import Backend
from diffuspec.models.loading.checkpoint import Checkpoint
from diffuspec.models.loading.fingerprint import check_same_files
from diffuspec.models.loading.shared import read_with_shared
from diffuspec.models.tensor_parallel.layers import (
    sharding_options,
    spreading_over,
    use_local_layers,
)
from diffuspec.text.quiet import quiet

# Keys in a diffusion LM's config.json that must not reach the configuration of its base.
_NOT_THE_BASES = (
    "model_type",
    "architectures",
    "auto_map",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "attn_implementation",
    "_attn_implementation",
)
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERT_SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size")
_ROW_ALIGNMENT = 16  # alignment of a row's address in bytes


def transformers_config(checkpoint: Checkpoint) -> Any:
    """Return the configuration of a checkpoint's architecture. Raises ModelLoadError."""
    path = checkpoint.path
    try:
        with quiet():
            if (family := checkpoint.family) is not None:
                fields = {k: v for k, v in checkpoint.config.items() if k not in _NOT_THE_BASES}
                return CONFIG_MAPPING[family.base](**fields)
            if checkpoint.is_drawn:
                return CONFIG_MAPPING[checkpoint.config["model_type"]](**checkpoint.config)
            config = AutoConfig.from_pretrained(
                path, trust_remote_code=False, local_files_only=True
            )
    except Exception as error:  # for example values of the wrong type
        raise ModelLoadError(f"{path}: config.json cannot be used: {error!r}") from error
    return config


def read_transformers_model(
    checkpoint: Checkpoint, config: Any, backend: Backend, num_ranks: int
) -> Any:
    """Return the causal LM of a directory, or a rank's share of it. Raises ModelLoadError."""
    path, family = checkpoint.path, checkpoint.family
    sharding = sharding_options(path, config, num_ranks)
    if num_ranks > 1:
        check_same_files(path, backend.device)
    weights = read_with_shared(checkpoint, config)
    head_token_ids = weights.pop(HEAD_TOKEN_IDS, None) if weights else None
    try:
        with quiet(), spreading_over(backend.device), RoundedAngles():
            code: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            loaded: Any = code.from_pretrained(
                None if weights else path,
                state_dict=weights,
                config=config,
                dtype=backend.dtype,
                attn_implementation=ATTENTION_NAME,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **_experts_options(config, backend.dtype),
                key_mapping=dict(family.renames) if family is not None else None,
                **sharding,
            )
    except Exception as error:  # transformers, safetensors and torch may raise anything
        if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
            raise ModelLoadError(
                f"{path}: the attention of {config.model_type} is not supported"
            ) from error
        raise ModelLoadError(f"{path}: cannot load its weights: {error!r}") from error
    model, info = loaded
    check_weights(path, model, info)
    if head_token_ids is not None:
        use_draft_head(model, head_token_ids, path)
    model = model.to(backend.device)
    if num_ranks > 1:
        use_local_layers(model)
    return model


def _experts_options(config: Any, dtype: torch.dtype) -> dict[str, str]:
    """Return how experts are computed: one by one if torch cannot multiply all of them at once.

    torch needs rows whose length is a multiple of 16 bytes.
    """
    sizes = (getattr(config, name, None) for name in _EXPERT_SIZES)
    has_experts = any(getattr(config, name, None) for name in _EXPERT_COUNTS)
    if has_experts and any((size or 0) * dtype.itemsize % _ROW_ALIGNMENT for size in sizes):
        return {"experts_implementation": "eager"}
    return {}


def check_weights(path: Path, model: Any, info: Mapping[str, Any]) -> None:
    """Check transformers' report on a model loaded from a directory or a file.

    Raises ModelLoadError for missing, unexpected or mismatched weights.
    """
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys := sorted(map(str, info[problem])):
            what = problem.removesuffix("_keys")
            raise ModelLoadError(
                f"{path}: {len(keys)} {what} weights for {type(model).__name__}: "
                + ", ".join(keys[:3])
            )
