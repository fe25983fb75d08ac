"""Tiny random checkpoints of each family of diffusion LMs, laid out as they are published.

Where a family's mask id stands differs, as it does in theirs: in config.json, in
generation_config.json, or in the tokenizer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tests.support.models import MASK_TOKEN_ID, edit_json, make_dream, make_model

_OWN = ("architectures", "rope_parameters", "dtype", "layer_types")  # as transformers writes them


@dataclass(frozen=True)
class Family:
    """How one family is saved, and how it is run by its definition."""

    base: str
    save: Callable[[Path], None]
    block_size: int | None  # None: full attention
    is_shifted: bool
    configured: int | None = None  # drafter.block_size


def _save_mask(path: Path, text: str, *, is_named: bool) -> None:
    """Save a tokenizer whose last token is the mask; is_named: it says so."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(MASK_TOKEN_ID)}, unk_token="w0"))
    tokenizer.add_special_tokens([text])
    named = {"mask_token": text} if is_named else {}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(path)


def _configure(path: Path, model_type: str, **changes: Any) -> None:
    """Write config.json as versions of transformers before 5 did."""
    own = dict.fromkeys(_OWN)
    theta = 500.0 if model_type == "sdar" else 10000.0
    edit_json(path / "config.json", model_type=model_type, rope_theta=theta, **own)
    edit_json(path / "config.json", torch_dtype="bfloat16", rope_scaling=None, **changes)


def _dream(path: Path) -> None:
    edit_json(path / "config.json", mask_token_id=MASK_TOKEN_ID)
    make_dream(path / "config.json")


def _fast_dllm(path: Path) -> None:
    classes = {"AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM"}
    _configure(path, "Fast_dLLM_Qwen", bd_size=8, auto_map=classes)
    _save_mask(path, "|<MASK>|", is_named=False)


def _sdar(path: Path) -> None:
    _configure(path, "sdar", mask_token_id=MASK_TOKEN_ID, block_size=4, fuse_cross_entropy=True)


def _a2d(model_type: str) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        _configure(path, model_type, architectures=["A2DLMHeadModel"])
        _save_mask(path, "<|mask|>", is_named=True)

    return save


def _efficient_dlm(path: Path) -> None:
    _configure(
        path, "qwen3", dlm_paradigm="bidirectional", block_size=6, attn_implementation="sdpa"
    )
    (path / "generation_config.json").write_text(json.dumps({"mask_token_id": MASK_TOKEN_ID}))
    renames = {"model.": "encoder.", "lm_head.": "diffusion_head."}
    weights = load_file(path / "model.safetensors")
    for old, new in renames.items():
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    save_file(weights, path / "model.safetensors", {"format": "pt"})


FAMILIES: dict[str, Family] = {
    "dream": Family("qwen2", _dream, None, is_shifted=True),
    "fast-dllm": Family("qwen2", _fast_dllm, 8, is_shifted=True),
    "sdar": Family("qwen3", _sdar, 4, is_shifted=False),
    "sdar of 9": Family("qwen3", _sdar, 9, is_shifted=False, configured=9),
    "a2d-qwen3": Family("qwen3", _a2d("a2d-qwen3"), None, is_shifted=False),
    "a2d-qwen3 bd3lm": Family("qwen3", _a2d("a2d-qwen3"), 5, is_shifted=False, configured=5),
    "a2d-qwen2": Family("qwen2", _a2d("a2d-qwen2"), None, is_shifted=False),
    "a2d-llama": Family("llama", _a2d("a2d-llama"), None, is_shifted=False),
    "efficient-dlm": Family("qwen3", _efficient_dlm, 6, is_shifted=False),
}
ALIGNED = [name for name, family in FAMILIES.items() if family.block_size]


@torch.inference_mode()
def save_family(path: Path, name: str) -> Path:
    """Save a random checkpoint of a family, biases and norms included."""
    family = FAMILIES[name]
    model = make_model(family.base)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(path)
    family.save(path)
    return path
