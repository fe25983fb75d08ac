"""Drafters with blocks aligned to multiples of their size: trained rows are those of drafting."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.pairs.factory.acceptance import measure_acceptance
from diffuspec.pairs.factory.blocks import hidden_states, masked_tokens, place_aligned_blocks
from diffuspec.pairs.factory.examples import Batch
from diffuspec.pairs.factory.export import load_drafter, save_drafter
from diffuspec.pairs.factory.start import keep_layers
from diffuspec.pairs.factory.training import DrafterPlan, DrafterTraining
from tests.pairs.factory.conftest import assert_drafts
from tests.support.checkpoints import MASK_TOKEN_ID, NUM_IDS
from tests.support.models import without_rounding

SIZE = 4
SETTINGS = DiffusionSettings(MASK_TOKEN_ID, "block_aligned", block_size=SIZE)


@pytest.fixture(scope="module")
def drafter(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("aligned")
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    save_drafter(keep_layers(model, [0, 1]), target, SETTINGS, out)
    return out


@torch.inference_mode()
def trained_logits(model: Any, token_ids: list[int], start: int, k: int) -> torch.Tensor:
    """Return the logits of a draft at `start`, [k, V], from the rows that are trained."""
    batch = Batch(torch.tensor([token_ids]), torch.ones(1, len(token_ids), dtype=torch.bool),
                  torch.ones(1, len(token_ids), dtype=torch.bool))  # fmt: skip
    num_blocks = -(-(start % SIZE + k) // SIZE)
    blocks = place_aligned_blocks(batch, torch.tensor([[start]]), num_blocks, SIZE)
    hidden = hidden_states(
        model, batch.token_ids, blocks, masked_tokens(batch, blocks, MASK_TOKEN_ID)
    )[0]
    logits = model.get_output_embeddings()(hidden)
    clean, drafted = logits.split([len(token_ids), num_blocks * SIZE])
    first = start % SIZE - 1
    rows = [clean[start - 1]] if first < 0 else [drafted[first]]
    return torch.stack([*rows, *drafted[first + 1 : first + k]])


async def test_rows_in_training_are_those_of_drafting(drafter):
    model, settings = load_drafter(drafter)
    assert settings == SETTINGS
    config = DiffuSpecConfig(
        path=drafter, device="cpu", dtype="float32", candidate_mass=1.0, max_candidates=256
    )
    target = TargetInfo(NUM_IDS, 256, max_sequences=2, eos_token_ids=())
    with without_rounding():
        served = DiffusionDrafter.load(config, target)
    tokens = np.random.default_rng(1).integers(3, 250, 30).tolist()
    for start, k in ((8, 3), (9, 3), (11, 1), (11, 9), (14, 7)):
        request = DraftRequest(
            "a",
            np.array(tokens[:start], np.int32),
            k,
            "path",
            max_nodes=64,
            drafter_weight=0.5,
            sampling=SamplingParams(),
        )
        [lattice] = await served.lattices([request])
        logits = trained_logits(model, tokens, start, k).clone()
        logits[:, NUM_IDS:] = -torch.inf
        logprobs = logits.log_softmax(-1)
        for column in range(k):
            ids = torch.from_numpy(lattice.token_ids[column, :50]).long()
            expected = logprobs[column][ids].numpy()
            np.testing.assert_allclose(lattice.logprobs[column, :50], expected, atol=2e-4)
    served.close()


def test_what_is_right_so_far_is_read_at_the_rows_of_drafting(drafter):
    model, settings = load_drafter(drafter)
    token_ids = np.random.default_rng(2).integers(3, 250, 29).tolist()
    starts = [9, 12, 15, 18]  # of probes in an answer of 11 tokens
    expected = []
    for start in starts:
        for place in range(3):  # the answer says what is drafted, once a token at a time
            said = int(trained_logits(model, token_ids, start, 3)[place].argmax())
            if start == 12:
                token_ids[start + place] = said
    for start in starts:
        choices = trained_logits(model, token_ids, start, 3).argmax(-1).tolist()
        right = [a == b for a, b in zip(choices, token_ids[start : start + 3], strict=True)]
        expected.append(np.cumprod(right))
    is_answer = torch.zeros(1, 29, dtype=torch.bool)
    is_answer[:, 9:20] = True
    batch = Batch(torch.tensor([token_ids]), is_answer, torch.ones_like(is_answer))
    found = measure_acceptance(model, [batch], settings, length=3, probes=4)
    assert found.right_by_position == pytest.approx(tuple(np.mean(expected, axis=0).tolist()))
    assert found.right_by_position[0] >= 0.25


@pytest.mark.slow
def test_an_aligned_drafter_learns_the_targets_answers(target, answers, tmp_path):
    plan = DrafterPlan(
        target,
        tmp_path,
        (answers,),
        attention="block_aligned",
        block_size=SIZE,
        layers=1,
        num_chunks=6,
        tokens_per_batch=400,
        report_every=3,
        matrix_lr=0.05,
        other_lr=0.01,
    )
    training = DrafterTraining(plan)
    before = training.measure()
    training.run()
    assert training.measure().mean > before.mean + 0.5
    found = inspect_checkpoint(tmp_path).diffusion
    assert found == replace(SETTINGS, mask_token_id=training.start.mask_token_id)
    assert json.loads((tmp_path / "config.json").read_text())["diffusion_block_size"] == SIZE
    assert "head_token_ids" in load_file(tmp_path / "model.safetensors")
    assert_drafts(target, {"path": tmp_path})
