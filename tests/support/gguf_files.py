"""Tiny GGUF files of random Llama models, with a token for every byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from tests.support.checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer

NUM_LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 64, 96, 4, 2
MAX_POSITIONS = 256


def write_gguf(
    path: Path, architecture: str = "llama", tokenizer: str = "gpt2", **values: Any
) -> Path:
    """Write a model whose matrices are stored in 8 bits; `values` are further metadata."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(MAX_POSITIONS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    for key, value in values.items():
        name = key.replace("__", ".")
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    num_ids = _add_tokenizer(writer, tokenizer)
    _add_weights(writer, num_ids)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, model: str) -> int:
    vocabulary = byte_tokenizer().get_vocab(with_added_tokens=True)
    tokens = [*sorted(vocabulary, key=lambda token: vocabulary[token]), "ab"]
    is_special = [token in SPECIAL_TOKENS for token in tokens]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if s else TokenType.NORMAL for s in is_special])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(vocabulary["<|end|>"])
    writer.add_eot_token_id(vocabulary["<|start|>"])
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def _add_weights(writer: GGUFWriter, num_ids: int) -> None:
    random = np.random.default_rng(3)
    kv_size = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv_size, HIDDEN),
        "attn_v": (kv_size, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    matrices = {"token_embd": (num_ids, HIDDEN)}
    norms = ["output_norm"]
    for i in range(NUM_LAYERS):
        matrices |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        norms += [f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm"]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    kind = GGMLQuantizationType.Q8_0
    for name, shape in matrices.items():
        weights = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quants.quantize(weights, kind), raw_dtype=kind)
