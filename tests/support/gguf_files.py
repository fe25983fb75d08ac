"""Tiny GGUF files of random Llama models, with a token for every byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType, quants

from tests.support.checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer

NUM_LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 64, 96, 4, 2
WIDE = 256  # inputs of a block of the K formats
MAX_POSITIONS = 256


def write_gguf(
    path: Path,
    architecture: str = "llama",
    tokenizer: str = "gpt2",
    kinds: Sequence[str] = ("Q8_0",),
    **values: Any,
) -> Path:
    """Write a model whose matrices are stored in formats in turn; `values` are further metadata."""
    is_wide = any(kind.endswith("_K") for kind in kinds)
    hidden, inner = (WIDE, WIDE) if is_wide else (HIDDEN, INNER)
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(MAX_POSITIONS)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    for key, value in values.items():
        name = key.replace("__", ".")
        add = {str: writer.add_string, float: writer.add_float32}.get(type(value))
        (add or writer.add_uint32)(name, value)
    num_ids = _add_tokenizer(writer, tokenizer)
    _add_weights(writer, num_ids, hidden, inner, itertools.cycle(kinds))
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


def _add_weights(
    writer: GGUFWriter, num_ids: int, hidden: int, inner: int, kinds: Iterator[str]
) -> None:
    random = np.random.default_rng(3)
    kv_size = hidden // HEADS * KV_HEADS
    layer = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv_size, hidden),
        "attn_v": (kv_size, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    matrices = {"token_embd": (num_ids, hidden)}
    norms = ["output_norm"]
    for i in range(NUM_LAYERS):
        matrices |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        norms += [f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm"]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))
    for name, shape in matrices.items():
        kind = GGMLQuantizationType[next(kinds)]
        writer.add_tensor(f"{name}.weight", random_blocks(random, shape, kind), raw_dtype=kind)


def random_blocks(
    random: np.random.Generator, shape: tuple[int, int], kind: GGMLQuantizationType
) -> np.ndarray:
    """Return random weights as a file stores them, [outputs, bytes]."""
    if not kind.name.endswith("_K"):
        return quants.quantize(random.normal(0, 0.3, shape).astype(np.float32), kind)
    num_inputs, num_bytes = GGML_QUANT_SIZES[kind]  # the package writes none of these
    blocks = random.integers(0, 256, (shape[0], shape[1] // num_inputs, num_bytes), np.uint8)
    for place in (208,) if kind.name == "Q6_K" else (0, 2):
        scales = random.normal(0, 3e-4, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, place : place + 2] = scales[:, :, None].view(np.uint8)
    return blocks.reshape(shape[0], -1)
