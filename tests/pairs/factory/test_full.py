"""Drafters with full attention: trained rows are those of drafting."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.families import DiffusionSettings
from diffuspec.pairs import tiny
from diffuspec.pairs.factory.acceptance import measure_acceptance
from diffuspec.pairs.factory.blocks import full_states, masked_tokens, place_full_drafts
from diffuspec.pairs.factory.examples import Batch
from diffuspec.pairs.factory.export import load_drafter, save_drafter
from diffuspec.pairs.factory.start import Start, begin_with, keep_layers, load_target
from diffuspec.pairs.factory.training import DrafterPlan, DrafterTraining
from tests.pairs.factory.conftest import assert_drafts
from tests.support.checkpoints import MASK_TOKEN_ID, NUM_IDS
from tests.support.draft_requests import draft_request
from tests.support.models import without_rounding

K = 5
SETTINGS = DiffusionSettings(MASK_TOKEN_ID, "full")


@pytest.fixture(scope="module")
def drafter(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("full")
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    save_drafter(keep_layers(model, [0, 1]), target, SETTINGS, out)
    return out


async def test_rows_in_training_are_those_of_drafting(drafter):
    model, settings = load_drafter(drafter)
    assert settings == SETTINGS
    token_ids = torch.from_numpy(np.random.default_rng(1).integers(3, 250, (2, 30)))
    marks = torch.ones(2, 30, dtype=torch.bool)
    starts = torch.tensor([[8, 27], [29, 1]])
    drafts = place_full_drafts(Batch(token_ids, marks, marks), starts, K)
    with torch.inference_mode():
        masks = masked_tokens(Batch(token_ids, marks, marks), drafts, MASK_TOKEN_ID)
        logits = model.get_output_embeddings()(full_states(model, token_ids, drafts, masks))
    logits = logits.unflatten(1, (2, K + 1))[..., :NUM_IDS].clone()
    config = DiffuSpecConfig(
        path=drafter, device="cpu", dtype="float32", candidate_mass=1.0, max_candidates=256
    )
    with without_rounding():
        served = DiffusionDrafter.load(
            config, TargetInfo(NUM_IDS, 256, max_sequences=2, eos_token_ids=())
        )
    for row, start in ((0, 0), (0, 1), (1, 0), (1, 1)):
        prefix = token_ids[row, : starts[row, start]].tolist()
        request = draft_request(prefix, K, 32, f"{row}{start}", "path")
        [lattice] = await served.lattices([request])
        expected = logits[row, start, :K].log_softmax(-1)
        found = torch.from_numpy(lattice.token_ids[:, :50].astype(np.int64))
        wanted = expected.gather(1, found).numpy()
        np.testing.assert_allclose(lattice.logprobs[:, :50], wanted, atol=2e-4)
    served.close()


def test_any_diffusion_lm_is_a_start_for_full_attention(target, tmp_path):
    loaded = load_target(target)
    causal = replace(SETTINGS, attention="block_causal")
    save_drafter(keep_layers(loaded, [0, 1]), target, causal, tmp_path / "causal")
    start, model = begin_with(tmp_path / "causal", loaded, "full")
    assert start == Start((0, 1), MASK_TOKEN_ID)
    assert model.get_output_embeddings() is loaded.get_output_embeddings()
    save_drafter(keep_layers(loaded, [0, 1]), target, None, tmp_path / "sps")
    with pytest.raises(ConfigError, match="is a causal LM, and the training is for full"):
        begin_with(tmp_path / "sps", loaded, "full")


def test_a_drafter_with_embeddings_of_its_own_is_loaded():
    model, settings = load_drafter(tiny.WEIGHTS / "drafter")
    assert settings is not None and settings.attention == "block_causal"
    assert len(model.model.layers) == 6


def test_labels_end_with_the_answer():
    is_answer = torch.tensor([[False, False, True, True, True, False, True]])
    batch = Batch(torch.arange(7)[None] + 10, is_answer, torch.ones_like(is_answer))
    drafts = place_full_drafts(batch, torch.tensor([[3, 6]]), 2)
    assert drafts.labels.tolist() == [[13, 14, -1, 16, -1, -1]]
    assert masked_tokens(batch, drafts, 99).tolist() == [[12, 99, 99, 15, 99, 99]]


def test_drafts_are_measured_where_they_are_made(drafter):
    model, settings = load_drafter(drafter)
    token_ids = torch.from_numpy(np.random.default_rng(2).integers(3, 250, (1, 20)))
    marks = torch.ones(1, 20, dtype=torch.bool)
    with torch.inference_mode():
        for place in range(9, 11):  # the answer says what is drafted after 9 tokens
            drafts = place_full_drafts(Batch(token_ids, marks, marks), torch.tensor([[9]]), 2)
            masks = masked_tokens(Batch(token_ids, marks, marks), drafts, MASK_TOKEN_ID)
            hidden = full_states(model, token_ids, drafts, masks)
            said = model.get_output_embeddings()(hidden).argmax(-1)
            token_ids[0, place] = said[0, place - 9]
    is_answer = marks & (torch.arange(20) >= 9)
    found = measure_acceptance(model, [Batch(token_ids, is_answer, marks)], settings, 2, probes=1)
    assert found.right_by_position == (1.0, 1.0)


@pytest.mark.slow
def test_a_drafter_with_full_attention_learns_the_targets_answers(target, answers, tmp_path):
    plan = DrafterPlan(
        target,
        tmp_path,
        (answers,),
        attention="full",
        layers=1,
        num_chunks=8,
        tokens_per_batch=400,
        report_every=4,
        matrix_lr=0.05,
        other_lr=0.01,
    )
    training = DrafterTraining(plan)
    before = training.measure()
    training.run()
    assert training.measure().mean > before.mean + 0.3
    found = inspect_checkpoint(tmp_path).diffusion
    assert found == replace(SETTINGS, mask_token_id=training.start.mask_token_id)
    assert_drafts(target, {"path": tmp_path})
