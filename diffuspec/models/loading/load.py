"""Loads a model directory or a GGUF file: no pickled weights, no remote code.

As much as possible is checked before weights are read. Every failure is a ModelLoadError that names
the directory and says what is supported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from diffuspec.core.devices import Device, DType
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.cache import CacheShape
from diffuspec.models.attention.interface import ATTENTION_NAME
from diffuspec.models.checks.exactness import has_independent_rows
from diffuspec.models.kernels import huge_pages, operations
from diffuspec.models.layers.activation import use_chunked_activations
from diffuspec.models.layers.draft_head import HEAD_TOKEN_IDS, DraftHead, use_draft_head
from diffuspec.models.layers.fused_decoder import use_fused_forward, use_fused_layers
from diffuspec.models.layers.linear import has_torch_products, use_fast_layers
from diffuspec.models.layers.rotary import RoundedAngles, use_rotary_tables
from diffuspec.models.loading.backend import Backend, choose_backend
from diffuspec.models.loading.checkpoint import Checkpoint, check_fits, inspect_checkpoint
from diffuspec.models.loading.gguf_model import read_gguf_model
from diffuspec.models.loading.quantized_directory import read_quantized_model
from diffuspec.models.loading.rope import check_rope, check_rope_types
from diffuspec.models.loading.shared import read_with_shared
from diffuspec.models.runner import ModelRunner
from diffuspec.models.tensor_parallel.layers import (
    has_only_plain_tensors,
    sharding_options,
    spreading_over,
    use_local_layers,
)
from diffuspec.text.tokenizer import quiet

logger = logging.getLogger(__name__)

# errors whose message explains the reason to the user
_UNSUPPORTED = (ModelLoadError, NotImplementedError)

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


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and facts from its directory."""

    runner: ModelRunner
    max_positions: int  # length of the longest sequence it was trained for
    backend: Backend


def load_model(
    path: Path,
    *,
    device: Device,
    dtype: DType = "auto",
    num_slots: int,
    max_len: int | None = None,
    num_scratch_rows: int = 0,
    is_exact: bool | None = False,
    num_ranks: int = 1,
    is_target: bool = False,
    allow_int8: bool = False,
    quantize_activations: bool = False,
) -> LoadedModel:
    """Load a causal LM, or a diffusion LM's weights as one, and its cache.

    The cache has num_slots slots of max_len rows (None: as many as the model was trained for) plus
    num_scratch_rows that are not kept. With is_exact, a row's bits depend only on the rows before
    it (see `ModelRunner`); None means if that costs little, which is the case in 16 bits, and in
    float32 on a CPU with our kernels. With num_ranks above 1, this process must have
    joined the ranks' group, and loads its share. A target must be autoregressive, and its rows
    independent of the rest of a forward. With allow_int8, rows and weights may be rounded to 8 bits
    where that is faster. With quantize_activations, which requires quantised weights on a CPU, rows
    multiplied with these are rounded to 8 bits. Raises ModelLoadError.
    """
    checkpoint = inspect_checkpoint(path)
    if is_target:
        checkpoint.check_autoregressive("the target")
    config = _transformers_config(checkpoint)
    check_rope_types(path, config)
    max_len = _checked_length(checkpoint, max_len)
    if is_target:
        check_rope(path, config, max_len)
    num_rows = max_len + num_scratch_rows
    backend = choose_backend(path, device, dtype, is_exact, num_ranks)
    where, precision = backend.device, backend.dtype
    if quantize_activations:
        _check_quantizes_activations(checkpoint, where)
        backend = replace(backend, quantizes_activations=True)
    cache_bytes = cache_shape(path, config).num_bytes(num_slots, num_rows, precision)
    sharding = sharding_options(path, config, num_ranks)
    _check_fits(checkpoint, precision, cache_bytes, where, num_ranks)
    model = _read_model(checkpoint, config, backend, num_ranks, sharding)
    fixed_rows = 1 + num_scratch_rows if is_exact else None
    try:
        runner = make_runner(
            model, num_slots, max_len, num_rows, backend.is_exact, fixed_rows, allow_int8
        )
    except Exception as error:  # models that cannot use our attention may raise anything
        what = error if isinstance(error, _UNSUPPORTED) else repr(error)
        name = type(model).__name__
        raise ModelLoadError(f"{path}: {name} is not supported: {what}") from error
    huge_pages.release_freed()
    backend = backend.of(runner)
    logger.info("%s: %s", path, backend)
    return LoadedModel(runner, checkpoint.max_positions, backend)


def _read_model(
    checkpoint: Checkpoint,
    config: Any,
    backend: Backend,
    num_ranks: int,
    sharding: dict[str, Any],
) -> Any:
    """Return a model with its weights, or a rank's share of them. Raises ModelLoadError."""
    if checkpoint.gguf is not None:
        return read_gguf_model(checkpoint.gguf, config, backend, num_ranks)
    if checkpoint.quantization is not None:
        return read_quantized_model(checkpoint, config, backend, num_ranks)
    dtype, device = backend.dtype, backend.device
    model = _read_weights(checkpoint, config, dtype, device, sharding).to(device)
    if num_ranks > 1:
        use_local_layers(model)
    return model


def cache_bytes_per_token(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Return the memory in bytes of a token's keys and values. Raises ModelLoadError."""
    config = _transformers_config(checkpoint)
    return cache_shape(checkpoint.path, config).num_bytes(1, 1, dtype)


def _checked_length(checkpoint: Checkpoint, max_len: int | None) -> int:
    """Return the length of a cache slot. Raises ModelLoadError."""
    max_positions = checkpoint.max_positions
    if max_len is not None and max_len > max_positions:
        raise ModelLoadError(
            f"{checkpoint.path} was trained for {max_positions} positions, max_model_len is "
            f"{max_len}"
        )
    return max_len or max_positions


def _check_quantizes_activations(checkpoint: Checkpoint, device: torch.device) -> None:
    """Raise ModelLoadError unless products of quantised weights can take 8-bit rows."""
    path, instead = checkpoint.path, "leave quantize_activations out"
    if checkpoint.gguf is None and checkpoint.quantization is None:
        raise ModelLoadError(
            f"{path}: quantize_activations is for quantised weights, these are not: {instead}"
        )
    if device.type != "cpu":
        raise ModelLoadError(
            f"{path}: quantize_activations is for CPUs, this model is on {device}: {instead}"
        )


def _check_fits(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    cache_bytes: int,
    device: torch.device,
    num_ranks: int,
) -> None:
    """Raise OutOfMemoryError unless weights and cache fit into memory."""
    weight_bytes = checkpoint.weight_bytes(dtype)
    num_memories = 1 if device.type == "cpu" else num_ranks
    cpu = torch.device("cpu")
    check_fits(checkpoint.path, weight_bytes, 0, cpu)  # weights are first read into CPU memory
    check_fits(checkpoint.path, weight_bytes // num_memories, cache_bytes // num_memories, device)


def make_runner(
    model: Any,
    num_slots: int,
    max_len: int,
    num_rows: int,
    may_be_exact: bool,
    fixed_rows: int | None,
    allow_int8: bool,
) -> ModelRunner:
    """Return a runner with the fastest available layers.

    It is exact if may_be_exact is set and the layers allow it; otherwise it uses fixed_rows.
    """
    is_plain = has_only_plain_tensors(model)
    may_be_exact = may_be_exact and operations.can_run_on(model.device)  # attention needs kernels
    is_exact = is_plain and use_fast_layers(model, may_be_exact, allow_int8) and may_be_exact
    if is_exact or (is_plain and model.device.type == "cpu"):
        use_rotary_tables(model, max_len, num_rows)
    is_exact = is_exact and use_chunked_activations(model)
    if is_plain:
        use_fused_layers(model.base_model)
        use_fused_forward(model)
    pads, head = has_torch_products(model), model.get_output_embeddings()
    columns = head.columns if isinstance(head, DraftHead) else None
    if is_exact:
        runner = ModelRunner(model, num_slots, num_rows, None, True, pads, columns)
        is_exact = has_independent_rows(runner)
    if not is_exact:
        runner = ModelRunner(model, num_slots, num_rows, fixed_rows, False, pads, columns)
    if is_plain:
        runner.capture_steps()
    return runner


def _transformers_config(checkpoint: Checkpoint) -> Any:
    path = checkpoint.path
    try:
        with quiet():
            if (family := checkpoint.family) is not None:
                fields = {k: v for k, v in checkpoint.config.items() if k not in _NOT_THE_BASES}
                return CONFIG_MAPPING[family.base](**fields)
            config = AutoConfig.from_pretrained(
                path, trust_remote_code=False, local_files_only=True
            )
    except Exception as error:  # for example values of the wrong type
        raise ModelLoadError(f"{path}: config.json cannot be used: {error!r}") from error
    return config


def _read_weights(
    checkpoint: Checkpoint,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    sharding: dict[str, Any],
) -> Any:
    path, family = checkpoint.path, checkpoint.family
    weights = read_with_shared(checkpoint, config)
    head_token_ids = weights.pop(HEAD_TOKEN_IDS, None) if weights else None
    try:
        with quiet(), spreading_over(device), RoundedAngles():
            code: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            loaded: Any = code.from_pretrained(
                None if weights else path,
                state_dict=weights,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **experts_options(config, dtype),
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
    return model


def experts_options(config: Any, dtype: torch.dtype) -> dict[str, str]:
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


def cache_shape(path: Path, config: Any) -> CacheShape:
    """Return the cache's shape from config.json. Raises ModelLoadError if layers lack attention."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        raise ModelLoadError(
            f"{path}: {config.model_type} is not supported: it is not a stack of attention layers"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return CacheShape(config.num_hidden_layers, num_kv_heads, head_dim)
