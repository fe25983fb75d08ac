"""Log-probabilities of prompts: those of the model, whatever the chunks, lossless for answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftTree, TokenLogprobs, Verdict, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import TARGET, tiny_config
from diffuspec.text.prompt_scoring import PromptScoring

PROMPT = np.arange(3, 13, dtype=np.int32)
ANY = TokenLogprobs(-1.0, ())


def verdict_on(chunk: VerifyRequest, **changes: object) -> Verdict:
    token_ids = (*chunk.tree.token_ids, 99)
    return replace(Verdict(token_ids, (), (ANY,) * len(token_ids)), **changes)  # type: ignore[arg-type]


def test_a_prompt_is_read_in_chains_to_its_end():
    scoring = PromptScoring(PROMPT, num_top=0)
    read = []
    while not scoring.is_finished:
        chunk = scoring.next_chunk("a", max_nodes=4)
        assert chunk.is_of_prompt and chunk.num_prompt_tokens == len(chunk.prefix) + len(
            chunk.tree.token_ids
        )
        read.append((len(chunk.prefix), chunk.tree.token_ids))
        scoring.take(chunk, verdict_on(chunk))
    assert read == [(1, (4, 5, 6, 7)), (5, (8, 9, 10, 11)), (9, (12,))]
    assert len(scoring.logprobs) == len(PROMPT) - 1


@pytest.mark.parametrize("changes", [{"logprobs": None}, {"token_ids": (4, 99)}])
def test_a_verdict_that_is_of_another_chain_is_refused(changes):
    scoring = PromptScoring(PROMPT, num_top=0)
    chunk = scoring.next_chunk("a", max_nodes=4)
    with pytest.raises(VerifierError):
        scoring.take(chunk, verdict_on(chunk, **changes))


@pytest.fixture(scope="module")
def engine():
    target, coordinator = {"path": TARGET, "device": "cpu"}, {"prefill_chunk_tokens": 24}
    config = tiny_config(target=target, coordinator=coordinator, drafter=None)
    with Engine.from_config(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)


@pytest.mark.parametrize("num_tokens", [1, 2, 65, 66, 150])
def test_prompts_have_the_log_probabilities_of_one_pass(engine: Engine, model, num_tokens: int):
    token_ids = engine.encode("The owl said that the ring is in the forest. " * 20)[:num_tokens]
    scored = SamplingParams(max_tokens=6, prompt_logprobs=3)
    [answer, again] = engine.generate([token_ids.tolist()] * 2, scored)
    [plain] = engine.generate([token_ids.tolist()], SamplingParams(max_tokens=6))
    assert answer.token_ids == plain.token_ids and plain.prompt_logprobs == ()
    assert len(again.prompt_logprobs) == num_tokens - 1
    assert len(answer.prompt_logprobs) == num_tokens - 1
    for found, expected in zip(
        answer.prompt_logprobs, expected_logprobs(model, token_ids), strict=True
    ):
        assert found.logprob == pytest.approx(expected, abs=1e-3)
        assert len(found.top) == 3


def expected_logprobs(model: Any, token_ids: np.ndarray) -> list[float]:
    """One pass of transformers' own model."""
    with torch.inference_mode():
        logits = model(torch.tensor(token_ids[None].astype(np.int64))).logits[0]
    rows = logits.log_softmax(-1)[:-1]
    following = torch.tensor(token_ids[1:].astype(np.int64))
    found: list[float] = rows.gather(-1, following[:, None])[:, 0].tolist()
    return found


@pytest.mark.parametrize(
    ("tree", "num_prompt_tokens"), [(chain((4, 5)), 4), (DraftTree((4, 5), (-1, -1)), 5)]
)
def test_a_draft_within_the_prompt_must_be_a_chain_of_it(engine, tree, num_prompt_tokens):
    request = VerifyRequest("a", PROMPT[:3], num_prompt_tokens, tree, SamplingParams())
    engine.verifier.check([replace(request, num_prompt_tokens=3)])
    with pytest.raises(InvalidRequestError, match="must be a chain"):
        engine.verifier.check([request])
