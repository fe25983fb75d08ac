"""The causal-LM proxy scores what the model itself says."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from diffuspec.algorithm.search import PathSearch
from diffuspec.core.errors import ModelLoadError, VocabularyError
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams
from diffuspec.core.types import DraftRequest, Lattice
from diffuspec.models.causal_proxy import CausalLmProxy
from tests.support.checkpoints import NUM_IDS
from tests.support.models import edit_json

CONTEXT = [5, 17, 40, 3, 88, 21]


@pytest.fixture
def proxy(target_path):
    return CausalLmProxy.load(target_path("qwen2"), device="cpu", vocab_size=NUM_IDS, beam_width=3)


def reference(path, token_ids):
    """Ln P(next token | token_ids) by transformers."""
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([token_ids])).logits[0, -1, :NUM_IDS]
    return logits.log_softmax(-1)


def test_candidates_are_scored_given_prefix_and_path(proxy, target_path):
    state = proxy.begin(CONTEXT)
    [scores], [after] = proxy.expand([state], [7, 9])
    expected = reference(target_path("qwen2"), CONTEXT)[[7, 9]]
    assert scores == pytest.approx(expected.tolist(), abs=1e-4)
    scores, _ = proxy.expand(after, [11, 30])
    for token_id, row in zip([7, 9], scores, strict=True):
        expected = reference(target_path("qwen2"), [*CONTEXT, token_id])[[11, 30]]
        assert row == pytest.approx(expected.tolist(), abs=1e-4)


def test_states_of_unequal_length_do_not_see_each_other(proxy, target_path):
    start = proxy.begin(CONTEXT)
    longer = proxy.expand([start], [7])[1][0][0]
    scores, _ = proxy.expand([start, longer], [11])
    assert scores[0] == pytest.approx(
        [float(reference(target_path("qwen2"), CONTEXT)[11])], abs=1e-4
    )
    expected = float(reference(target_path("qwen2"), [*CONTEXT, 7])[11])
    assert scores[1] == pytest.approx([expected], abs=1e-4)


def test_rows_of_another_salt_are_computed_again(proxy, monkeypatch):
    fed, feed = [], proxy._runner.feed

    def count(slot, token_ids, start):
        fed.append(len(token_ids))
        return feed(slot, token_ids, start)

    monkeypatch.setattr(proxy._runner, "feed", count)
    scores = [proxy.expand([proxy.begin(CONTEXT, salt)], [1])[0] for salt in ("x", "x", "y", None)]
    assert fed == [5, 5, 5]  # all but the last token, unless they are cached
    assert scores[1:] == scores[:-1]


def test_a_new_prefix_replaces_the_cached_one(proxy, target_path):
    proxy.expand([proxy.begin(CONTEXT)], [1])
    other = [*CONTEXT[:3], 60, 61]
    [scores], _ = proxy.expand([proxy.begin(other)], [11])
    assert scores == pytest.approx([float(reference(target_path("qwen2"), other)[11])], abs=1e-4)


def test_the_search_takes_the_path_that_the_model_finds_likelier(proxy, target_path):
    likeliest = int(reference(target_path("qwen2"), CONTEXT).argmax())
    other = (likeliest + 1) % NUM_IDS
    lattice = Lattice(
        np.array([[other, likeliest]], np.int32),
        np.log(np.array([[0.5, 0.5]], np.float32)),
        np.array([2], np.int32),
        1,
    )
    prefix = np.array(CONTEXT, np.int32)
    request = DraftRequest("r", prefix, 1, "path", 8, 0.5, SamplingParams())
    assert PathSearch(proxy).search_one(request, lattice).tree.token_ids == (likeliest,)
    alone = replace(request, drafter_weight=1.0)
    assert PathSearch(proxy).search_one(alone, lattice).tree.token_ids == (other,)


def test_a_model_over_other_token_ids_is_refused(target_path):
    with pytest.raises(VocabularyError, match="share the target's tokenizer"):
        CausalLmProxy.load(target_path("qwen2"), device="cpu", vocab_size=NUM_IDS - 1, beam_width=3)


def test_a_wide_beam_has_room_for_its_longest_paths_after_the_longest_context(target_path):
    width, depth = 12, MAX_DRAFT_TOKENS - 1
    proxy = CausalLmProxy.load(
        target_path("qwen2"), device="cpu", vocab_size=NUM_IDS, beam_width=width
    )
    context = tuple(range(3, 3 + NUM_IDS - 10)) * 4
    start = proxy.begin(context[: proxy.max_context_tokens])
    states = [replace(start, path=(token_id,) * depth) for token_id in range(10, 10 + width)]
    scores, _ = proxy.expand(states, [11, 30])
    [alone], _ = proxy.expand(states[-1:], [11, 30])
    assert scores[-1] == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"max_position_embeddings": 128}, "trained for 128 positions; it must be more than 128"),
        ({"diffusion_attention": "full"}, "but the causal proxy must be a causal LM"),
    ],
)
def test_a_model_that_cannot_score_drafts_is_refused(target_path, tmp_path, said, message):
    path = shutil.copytree(target_path("qwen2"), tmp_path / "model")
    edit_json(path / "config.json", **said)
    with pytest.raises(ModelLoadError, match=message):
        CausalLmProxy.load(path, device="cpu", vocab_size=NUM_IDS, beam_width=3)
