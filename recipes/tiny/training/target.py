"""The tiny target: a Qwen2 trained to answer.

It is deep and narrow, because on a CPU this shape verifies many tokens in one pass at the lowest
cost.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.pairs.factory.examples import Example, pad
from recipes.tiny.corpus.tokenizer import NUM_EMBEDDINGS

PROMPT_LOSS_WEIGHT = 0.02


def target_config() -> Qwen2Config:
    config = Qwen2Config(
        vocab_size=NUM_EMBEDDINGS,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=16,
        num_attention_heads=6,
        num_key_value_heads=6,  # copying needs values as wide as the model
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    config.head_dim = 32
    return config


def next_token_loss(model: Qwen2ForCausalLM, batch: list[Example]) -> torch.Tensor:
    """Return the cross-entropy of answers, and of prompts with PROMPT_LOSS_WEIGHT."""
    padded = pad(batch)
    token_ids, is_answer = padded.token_ids, padded.is_answer
    hidden = model.model(input_ids=token_ids, use_cache=False).last_hidden_state[:, :-1]
    labels, wanted = token_ids[:, 1:], is_answer[:, 1:]
    # samples rows instead of weighting them
    sampled = torch.rand(labels.shape) < PROMPT_LOSS_WEIGHT
    kept = wanted | (sampled & (labels != 0))
    logits = model.lm_head(hidden[kept]).float()
    return cross_entropy(logits, labels[kept])


@torch.inference_mode()
def answer_accuracy(model: Qwen2ForCausalLM, batch: list[Example]) -> list[bool]:
    """Return for each example whether greedy decoding reproduces its answers exactly."""
    padded = pad(batch)
    token_ids, is_answer = padded.token_ids, padded.is_answer
    logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
    right = (logits.argmax(-1) == token_ids[:, 1:]) | ~is_answer[:, 1:]
    flags: list[bool] = right.all(-1).tolist()
    return flags
