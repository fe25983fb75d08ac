"""Tiny random checkpoints with a tokenizer that reads and writes any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIAL_TOKENS = ("<|end|>", "<|start|>")
MASK_TOKEN_ID = 258  # only the models know it: 256 bytes and two special tokens come before
NUM_IDS = 258
EOS_IDS = [256, 17, 73, 140]  # several, so that random models come across one now and then
MAX_POSITIONS = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + ':' + message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant:' }}{% endif %}"
)

_SHAPE = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.3,
    "eos_token_id": EOS_IDS,
    "pad_token_id": None,
    "bos_token_id": None,
}
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def byte_tokenizer() -> Tokenizer:
    """One token per byte, special tokens after them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def words_tokenizer() -> Tokenizer:
    """Two words and bytes as SentencePiece has them: a space that begins a text is dropped."""
    pieces = ["<unk>", "▁Paris", "Paris", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    space, first = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), first])
    return tokenizer


def save_target(path: Path, family: str, **config: Any) -> Path:
    """Save a random target, with changes of its config, and its tokenizer."""
    _save_model(path, family, 0, **config)
    PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    ).save_pretrained(path)
    return path


def save_drafter(path: Path) -> Path:
    """Save a random block-causal diffusion LM over the same ids."""
    _save_model(path, "qwen2", 1)
    config = json.loads((path / "config.json").read_text())
    config |= {"mask_token_id": MASK_TOKEN_ID, "diffusion_attention": "block_causal"}
    (path / "config.json").write_text(json.dumps(config))
    return path


def _save_model(path: Path, family: str, seed: int, **config: Any) -> None:
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    model_class(config_class(**_SHAPE | config)).save_pretrained(path)
