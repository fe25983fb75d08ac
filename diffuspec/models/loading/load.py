"""Loads a model directory or a GGUF file: no pickled weights, no remote code.

As much as possible is checked before weights are read. Every failure is a ModelLoadError that names
the directory and says what is supported.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffuspec.core.devices import Device, DType
from diffuspec.core.errors import ModelLoadError, VerifierUnavailableError
from diffuspec.core.memory import release_freed
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.models.checks.exactness import has_independent_rows
from diffuspec.models.kernels import operations
from diffuspec.models.layers.activation import use_chunked_activations
from diffuspec.models.layers.fused_decoder import use_fused_forward, use_fused_layers
from diffuspec.models.layers.linear import use_fast_layers
from diffuspec.models.layers.rotary import use_rotary_tables
from diffuspec.models.loading.backend import Backend, choose_backend
from diffuspec.models.loading.cache_shape import cache_shape
from diffuspec.models.loading.checkpoint import (
    Checkpoint,
    check_fits,
    inspect_checkpoint,
    memory_bytes,
)
from diffuspec.models.loading.drawn_model import draw_model
from diffuspec.models.loading.gguf_model import read_gguf_model
from diffuspec.models.loading.quantized_cost import log_costs
from diffuspec.models.loading.quantized_directory import read_quantized_model
from diffuspec.models.loading.rope import check_rope, check_rope_types
from diffuspec.models.loading.transformers_model import (
    read_transformers_model,
    transformers_config,
)
from diffuspec.models.pages.store import default_num_pages
from diffuspec.models.runner import CacheSettings, ModelRunner
from diffuspec.models.tensor_parallel.collectives import Agree, all_ranks, least_of_ranks
from diffuspec.models.tensor_parallel.layers import has_only_plain_tensors
from diffuspec.telemetry.logs import stages

logger = logging.getLogger(__name__)

_QUICK_BYTES = 50_000_000  # weights that are loaded in less than a second

# errors whose message explains the reason to the user
_UNSUPPORTED = (ModelLoadError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and facts from its directory."""

    runner: ModelRunner
    max_positions: int  # length of the longest sequence it was trained for
    backend: Backend


def load_model(
    source: Path | Checkpoint,
    *,
    device: Device,
    dtype: DType = "auto",
    max_sequences: int = 1,
    max_len: int | None = None,
    num_scratch_rows: int = 0,
    cache_memory: float | None = None,
    shares_prefixes: bool = True,
    is_exact: bool | None = False,
    num_ranks: int = 1,
    is_target: bool = False,
    allow_int8: bool = False,
    quantize_activations: bool = False,
) -> LoadedModel:
    """Load a causal LM, or a diffusion LM's weights as one, and its cache.

    A sequence has up to max_len rows (None: as many as the model was trained for), and for a step
    num_scratch_rows more. cache_memory: size of the cache, see `TargetConfig`; None: what
    `default_num_pages` says. shares_prefixes: see `KVCache`. With is_exact, a row's bits depend
    only on the rows before it (see `ModelRunner`); None: if that costs little, see
    `choose_backend`. With num_ranks above 1, this process must have joined the ranks' group, and
    loads its share. A target must be autoregressive, and its rows independent of the rest of a
    forward. With allow_int8, rows and weights may be rounded to 8 bits where that is faster. With
    quantize_activations, which requires quantised weights on a CPU, rows multiplied with these are
    rounded to 8 bits. Raises
    ModelLoadError.
    """
    checkpoint = inspect_checkpoint(source) if isinstance(source, Path) else source
    path = checkpoint.path
    if is_target:
        checkpoint.check_autoregressive("the target")
    config = transformers_config(checkpoint)
    check_rope_types(path, config)
    max_len = _checked_length(checkpoint, max_len)
    fixed_rows = 1 + num_scratch_rows if is_exact else None
    if is_target:
        check_rope(path, config, max_len)
    num_rows = max_len + num_scratch_rows + (fixed_rows or 0)
    backend = choose_backend(path, device, dtype, is_exact)
    if quantize_activations:
        _check_quantizes_activations(checkpoint, backend.device)
        backend = replace(backend, quantizes_activations=True)
    page_bytes = cache_shape(path, config).num_bytes(PAGE_SIZE, backend.dtype)
    if cache_memory is None:
        num_pages = default_num_pages(max_sequences, max_len, num_rows - max_len + num_scratch_rows)
    else:
        num_pages = _pages_within(cache_memory, checkpoint, backend, page_bytes, num_ranks)
    _check_fits(checkpoint, backend, num_pages * page_bytes, num_ranks)
    cache = CacheSettings(num_pages, shares_prefixes, is_target)
    if (num_bytes := checkpoint.weight_bytes(backend.dtype)) > _QUICK_BYTES:
        stages.info("loading %s (%d MB)", path, num_bytes // 1_000_000)
    model = _read_model(checkpoint, config, backend, num_ranks)
    agree: Agree = partial(all_ranks, device=model.device) if num_ranks > 1 else bool
    try:
        may_be_exact = _use_our_layers(
            model, max_len, num_rows, backend.is_exact, allow_int8, agree
        )
        runner = _make_runner(model, num_rows, cache, may_be_exact, fixed_rows, agree)
    except VerifierUnavailableError:
        raise
    except Exception as error:  # models that cannot use our attention may raise anything
        what = error if isinstance(error, _UNSUPPORTED) else repr(error)
        name = type(model).__name__
        raise ModelLoadError(f"{path}: {name} is not supported: {what}") from error
    release_freed()
    is_quantized = checkpoint.gguf is not None or checkpoint.quantization is not None
    backend = backend.of(runner)
    needs_exactness = is_target or is_exact is not False  # a drafter's rows change no answer
    logger.info("%s: %s", path, backend if needs_exactness else backend.arithmetic)
    if is_quantized and backend.device.type == "cuda":
        log_costs(path, model, backend.dtype)
    return LoadedModel(runner, checkpoint.max_positions, backend)


def _pages_within(
    cache_memory: float, checkpoint: Checkpoint, backend: Backend, page_bytes: int, num_ranks: int
) -> int:
    """Return the number of pages for which every rank has room.

    cache_memory: bytes on each device, or a share of its memory, which includes the weights.
    page_bytes: size of a page on all ranks together.
    """
    num_bytes = int(cache_memory)
    if cache_memory <= 1:
        weight_bytes = checkpoint.weight_bytes(backend.dtype) // num_ranks
        num_bytes = max(0, int(cache_memory * memory_bytes(backend.device)) - weight_bytes)
    num_pages = max(1, num_bytes * num_ranks // page_bytes)
    return least_of_ranks(num_pages, backend.device) if num_ranks > 1 else num_pages


def _checked_length(checkpoint: Checkpoint, max_len: int | None) -> int:
    """Return the length of the longest sequence. Raises ModelLoadError."""
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


def _check_fits(checkpoint: Checkpoint, backend: Backend, cache_bytes: int, num_ranks: int) -> None:
    """Raise OutOfMemoryError unless weights and cache fit into memory."""
    path, device = checkpoint.path, backend.device
    weight_bytes = checkpoint.weight_bytes(backend.dtype)
    num_memories = 1 if device.type == "cpu" else num_ranks
    if not checkpoint.is_drawn:  # others are first read into CPU memory
        check_fits(path, weight_bytes, 0, torch.device("cpu"))
    check_fits(path, weight_bytes // num_memories, cache_bytes // num_memories, device)


def _read_model(checkpoint: Checkpoint, config: Any, backend: Backend, num_ranks: int) -> Any:
    """Return a model with its weights, or a rank's share of them. Raises ModelLoadError."""
    if checkpoint.is_drawn:
        return draw_model(checkpoint, config, backend)
    if checkpoint.gguf is not None:
        return read_gguf_model(checkpoint.gguf, config, backend, num_ranks)
    if checkpoint.quantization is not None:
        return read_quantized_model(checkpoint, config, backend, num_ranks)
    return read_transformers_model(checkpoint, config, backend, num_ranks)


def _use_our_layers(
    model: Any, max_len: int, num_rows: int, is_exact: bool, allow_int8: bool, agree: Agree
) -> bool:
    """Replace a model's layers, in place, by faster ones; sequences have up to max_len tokens.

    With is_exact, returns whether each layer, of all ranks, computes a row independently of the
    others.
    """
    if not has_only_plain_tensors(model):
        return False
    is_exact = is_exact and operations.can_run_on(model.device)  # attention needs kernels
    is_exact = use_fast_layers(model, is_exact, allow_int8) and is_exact
    if is_exact or model.device.type == "cpu":
        use_rotary_tables(model, max_len, num_rows)
    is_exact = is_exact and use_chunked_activations(model)
    use_fused_layers(model.base_model, agree)
    use_fused_forward(model)
    return agree(is_exact)


def _make_runner(
    model: Any,
    num_rows: int,
    cache: CacheSettings,
    may_be_exact: bool,
    fixed_rows: int | None,
    agree: Agree,
) -> ModelRunner:
    """Return a runner: an exact one if a trial succeeds, otherwise one with fixed_rows, if any."""
    first_rows = None if may_be_exact else fixed_rows
    runner = ModelRunner(model, num_rows, cache, first_rows, may_be_exact)
    if may_be_exact and not has_independent_rows(runner, agree):
        del runner  # frees its cache, which may be as large as the memory
        runner = ModelRunner(model, num_rows, cache, fixed_rows)
    if has_only_plain_tensors(model):
        runner.capture_steps()
    return runner
