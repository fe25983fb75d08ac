"""Saves a trained drafter as a model directory that shares embeddings and head with its target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.layers.draft_head import HEAD_TOKEN_IDS
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.models.loading.shared import SCALE_SUFFIX, read_with_shared, to_int8
from diffuspec.text.quiet import quiet
from diffuspec.text.tokenizer import load_tokenizer

Storage = Literal["bfloat16", "int8"]


@contextmanager
def replacing_files(out: Path) -> Iterator[Path]:
    """Yield a folder whose files then replace those of `out`, config.json last.

    A process that is killed leaves whole files, and no config.json without its weights.
    """
    part = out / ".part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(out / file.name)
    part.rmdir()


def save_drafter(
    model: Any,
    target: Path,
    settings: DiffusionSettings | None,
    out: Path,
    storage: Storage = "bfloat16",
    head_token_ids: torch.Tensor | None = None,
) -> None:
    """Write config.json, the tokenizer and the drafter's own weights; see `stored`.

    settings: None for a causal LM. head_token_ids: the only ids to draft, ascending.
    """
    config = model.config
    if settings is not None:
        config.mask_token_id = settings.mask_token_id
        config.diffusion_attention = settings.attention
        if settings.attention == "block_aligned":
            config.diffusion_block_size = settings.block_size
    config.embeddings_from = os.path.relpath(target, out)
    config.dtype = "bfloat16"
    shared = {
        id(layer.weight) for layer in (model.get_input_embeddings(), model.get_output_embeddings())
    }
    named = model.state_dict(keep_vars=True).items()
    own = stored({name: tensor for name, tensor in named if id(tensor) not in shared}, storage)
    if head_token_ids is not None:
        own[HEAD_TOKEN_IDS] = head_token_ids.to("cpu", torch.int32)
    with replacing_files(out) as part:
        config.save_pretrained(part)
        save_file(own, part / "model.safetensors", {"format": "pt"})
        load_tokenizer(target).save_pretrained(part)


def stored(weights: Mapping[str, torch.Tensor], storage: Storage) -> dict[str, torch.Tensor]:
    """Return weights in their stored form, on the CPU.

    int8 stores matrices as integers with a scale for each row, in half the space of bfloat16.
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if storage == "int8" and tensor.ndim == 2:
            found[name], found[name + SCALE_SUFFIX] = to_int8(tensor.detach().cpu().float())
        else:
            found[name] = tensor.detach().to("cpu", torch.bfloat16).contiguous()
    return found


def load_drafter(path: Path) -> tuple[Any, DiffusionSettings | None]:
    """Load an exported drafter as a transformers model; return it and its settings.

    Its head is the target's complete head. The settings of a causal LM are None. Raises
    ModelLoadError.
    """
    checkpoint = inspect_checkpoint(path)
    settings = checkpoint.diffusion if checkpoint.is_diffusion else None
    is_exported = checkpoint.family is None and (settings is None or settings.is_shifted)
    if not is_exported:
        raise ModelLoadError(f"{path} was not made by `diffuspec drafter train`")
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    weights = read_with_shared(checkpoint, config) or {}
    weights.pop(HEAD_TOKEN_IDS, None)
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with quiet():
        model = family.from_pretrained(
            None if weights else path,
            state_dict=weights or None,
            config=config,
            dtype=torch.float32,
        )
    return model, settings
