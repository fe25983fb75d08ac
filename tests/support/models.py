"""Tiny random models, their checkpoints, and what their forwards should give."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from diffuspec.core.pages import num_pages_of
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.layers import linear
from diffuspec.models.pages.table import PageTable

VOCAB_SIZE = 120
MASK_TOKEN_ID = 119  # the target's tokenizer does not know it
NUM_KNOWN_IDS = 118
MAX_POSITIONS = 256

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
}

LEARNED_POSITIONS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": MAX_POSITIONS,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "bos_token_id": None,
}

MIXED_LAYERS: dict[str, Any] = {
    "use_sliding_window": True,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

PARTIAL_ROTARY: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
    "qk_layernorm": True,
    "use_qkv_bias": True,
}

BESIDE_A_DECODER: dict[str, Any] = {  # a base model that the head's does not call
    **{key: SHAPE[key] for key in ("vocab_size", "hidden_size", "num_attention_heads")},
    **{key: SHAPE[key] for key in ("num_hidden_layers", "max_position_embeddings")},
    "ffn_dim": 64,
    "word_embed_proj_dim": 48,
    "init_std": 0.2,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
}

SOFT_CAPS: dict[str, Any] = {
    "head_dim": 12,
    "query_pre_attn_scalar": 12,
    "sliding_window": 7,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 4.0,
}

EXPERTS: dict[str, Any] = {
    "head_dim": 12,
    "sliding_window": 7,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
}

_RNG = np.random.default_rng(7)

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)),
    "qwen2 with windows": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, **MIXED_LAYERS)),
    "stablelm": lambda: StableLmForCausalLM(StableLmConfig(**SHAPE, **PARTIAL_ROTARY)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, **SOFT_CAPS)),
    "gpt-oss": lambda: GptOssForCausalLM(GptOssConfig(**SHAPE, **EXPERTS)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**LEARNED_POSITIONS)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**BESIDE_A_DECODER)),
}


def make_model(family: str) -> Any:
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


def make_dynamic_model() -> Any:
    """Llama with "dynamic" rope: its angles change beyond the positions it was trained for."""
    torch.manual_seed(0)
    rope: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    return LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope)).eval()


def make_longrope_model() -> Any:
    """Phi3 as its long-context versions are: its angles change beyond 128 positions."""
    torch.manual_seed(0)
    rope: dict[str, Any] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 6,
        "long_factor": [8.0] * 6,
    }
    config = Phi3Config(**SHAPE, original_max_position_embeddings=128, rope_parameters=rope)
    return Phi3ForCausalLM(config).eval()


def make_phi3_model() -> Any:
    """Phi3, whose plan gives the layers split by rows their whole input."""
    torch.manual_seed(0)
    return Phi3ForCausalLM(Phi3Config(**SHAPE)).eval()


def make_drafter_model() -> Any:
    """Dream's architecture: Qwen2 with a rope_theta of its own and untied embeddings."""
    torch.manual_seed(1)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 500.0}
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, rope_parameters=rope)).eval()


@contextlib.contextmanager
def without_rounding() -> Iterator[None]:
    """Let drafters multiply in the type of their weights, to compare them with other code."""
    make_layer = linear.fastest_linear

    def make(weight: torch.Tensor, bias: Any, is_exact: bool, _: bool, *rest: bool) -> Any:
        return make_layer(weight, bias, is_exact, False, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "fastest_linear", make)
        yield


def save_tokenizer(path: Path, num_ids: int = NUM_KNOWN_IDS) -> None:
    vocabulary = {f"w{i}": i for i in range(num_ids)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer.decoder = ByteLevel()  # grammars need one that they know
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)


def edit_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    data = json.loads(file.read_text())
    data.update(changes)
    file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def make_dream(config: Path) -> None:
    """Turn a Qwen2 config.json into one as Dream-7B ships it."""
    edit_json(
        config,
        model_type="Dream",
        architectures=["DreamModel"],
        auto_map={
            "AutoConfig": "configuration_dream.DreamConfig",
            "AutoModel": "modeling_dream.DreamModel",
        },
        rope_theta=500.0,
        rope_parameters=None,
        rope_scaling=None,
        layer_types=None,
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=28,
        use_mrope=False,
        torch_dtype="bfloat16",
        dtype=None,
        transformers_version="4.46.2",
        attention_dropout=0.0,
        use_cache=True,
    )


def random_tokens(length: int) -> NDArray[np.int64]:
    return _RNG.integers(0, VOCAB_SIZE, length)


@cache
def fixed_table(number: int) -> PageTable:
    """Return a table of MAX_POSITIONS rows and more, of pages that no other number has."""
    num_pages = num_pages_of(MAX_POSITIONS + 1)
    pages = np.arange(number * num_pages, (number + 1) * num_pages, dtype=np.int32)
    return PageTable(f"fixed {number}", pages=pages)


def segment(
    table: int | PageTable, start: int, token_ids: NDArray[Any], visible: Visible = "causal"
) -> Segment:
    """Return rows of a table, which may be a fixed one, all of them with logits."""
    length = len(token_ids)
    positions = np.arange(start, start + length)
    table = fixed_table(table) if isinstance(table, int) else table
    return Segment(table, start, token_ids, positions, visible, range(length))


@torch.inference_mode()
def reference(
    model: Any, token_ids: Sequence[int] | NDArray[Any], visible: torch.Tensor | None = None
) -> torch.Tensor:
    mask = None if visible is None else visible[None, None]
    logits: torch.Tensor = model(torch.tensor(token_ids)[None], attention_mask=mask).logits[0]
    return logits


def assert_same_logits(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() < 1e-4
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
