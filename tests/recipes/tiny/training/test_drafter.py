"""The drafter's training rows and loss."""

import asyncio
import random

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.pairs.factory.blocks import hidden_states, place_blocks
from diffuspec.pairs.factory.examples import pad
from recipes.tiny.corpus.conversations import conversation
from recipes.tiny.corpus.tokenizer import MASK_TOKEN_ID
from recipes.tiny.training.drafter import TARGET_LAYERS, drafter_config, start_from
from recipes.tiny.training.target import target_config
from tests.recipes.tiny.conftest import small
from tests.support.models import without_rounding


@pytest.mark.parametrize("window", [None, 9])
def test_training_rows_and_drafting_rows_compute_the_same(encoder, tokenizer, tmp_path, window):
    torch.manual_seed(0)
    config = small(drafter_config())
    config.initializer_range = 0.5  # so that rows differ
    config.use_sliding_window, config.sliding_window = window is not None, window
    config.layer_types = ["sliding_attention" if window else "full_attention", "full_attention"]
    model = Qwen2ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    example = encoder.conversation(conversation("qa", random.Random(2)))
    batch = pad([example])
    start, length = example.is_answer.index(True) + 2, 6
    blocks = place_blocks(batch, torch.tensor([[start]]), length)
    with torch.inference_mode():
        masks = torch.full_like(blocks.positions, MASK_TOKEN_ID)
        hidden = hidden_states(model, batch.token_ids, blocks, masks)[0]
        clean, block = hidden[start - 1 : start], hidden[-length:-1]
        logits = model.lm_head(torch.cat([clean, block]))
    trained = logits[:, : len(tokenizer)].argmax(-1)  # no draft holds the mask token

    with without_rounding():
        drafter = DiffusionDrafter.load(
            DiffuSpecConfig(path=tmp_path, device="cpu", candidate_mass=1e-6),
            TargetInfo(len(tokenizer), 2048, 1, eos_token_ids=(2,)),
        )
    prefix = np.array(example.token_ids[:start], np.int32)
    request = DraftRequest("r", prefix, length, "path", 8, 1.0, SamplingParams())
    [lattice] = asyncio.run(drafter.lattices([request]))
    drafter.close()
    drafted = lattice.token_ids[:, 0].tolist()
    assert len(set(drafted)) > 2 and drafted == trained.tolist()[: len(drafted)]


def test_a_drafter_starts_from_some_of_the_targets_layers():
    target = Qwen2ForCausalLM(target_config())
    drafter = start_from(target)
    for layer, source in zip(drafter.model.layers, TARGET_LAYERS, strict=True):
        mine, its = layer.mlp.up_proj.weight, target.model.layers[source].mlp.up_proj.weight
        assert torch.equal(mine, its)
    assert torch.equal(drafter.lm_head.weight, target.lm_head.weight)
