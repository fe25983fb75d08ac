"""The tiny drafter: some of the target's layers, trained further as a block-causal diffusion LM.

All layers but one attend only to a window, so a draft costs nearly the same after any prefix.
"""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.pairs.factory.acceptance import measure_acceptance
from diffuspec.pairs.factory.examples import Example, pad
from diffuspec.pairs.factory.loss import Head, LossConfig, draft_loss
from recipes.tiny.corpus.tokenizer import MASK_TOKEN_ID
from recipes.tiny.training.target import target_config

# Found by repeatedly dropping the layer that costs least accuracy on held-out questions.
TARGET_LAYERS = (0, 2, 3, 10, 12, 15)
FULL_LAYER = 3  # attends to the whole prefix; most important for copying over long distances
WINDOW = 256  # tokens to which a row of the other layers attends, including its own
LOSS = LossConfig(MASK_TOKEN_ID)
SETTINGS = DiffusionSettings(MASK_TOKEN_ID, "block_causal")
PROBE_BLOCK = 24


def drafter_config() -> Qwen2Config:
    config = target_config()
    config.num_hidden_layers = len(TARGET_LAYERS)
    config.layer_types = ["sliding_attention"] * len(TARGET_LAYERS)
    config.layer_types[FULL_LAYER] = "full_attention"
    config.use_sliding_window, config.sliding_window = True, WINDOW
    config.mask_token_id = MASK_TOKEN_ID
    config.diffusion_attention = "block_causal"
    return config


def start_from(target: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """Return a drafter with the target's embeddings, last norm, and some of its layers."""
    model = Qwen2ForCausalLM(drafter_config())
    model.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(target.model.norm.state_dict())
    for layer, source in zip(model.model.layers, TARGET_LAYERS, strict=True):
        layer.load_state_dict(target.model.layers[source].state_dict())
    return model


def batch_loss(model: Qwen2ForCausalLM, batch: list[Example]) -> torch.Tensor:
    """Return the drafter's loss on examples."""
    return draft_loss(model, pad(batch), LOSS, Head(model))


def mean_acceptance(model: Qwen2ForCausalLM, batch: list[Example]) -> float:
    """Return the committed tokens per step of argmax drafts at evenly spaced places of answers."""
    return measure_acceptance(model, [pad(batch)], SETTINGS, PROBE_BLOCK).mean
