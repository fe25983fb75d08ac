"""Prompt lookup drafts what followed the same tokens before; small examples, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from diffuspec.algorithm.calibration import AcceptanceModel
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.drafter_config import PromptLookupConfig
from diffuspec.core.types import Draft, Verdict
from diffuspec.drafters.prompt_lookup import PromptLookupDrafter, find_repeat
from tests.support.draft_requests import draft_request as request

EOS = 9


def drafter(**settings: int) -> PromptLookupDrafter:
    return PromptLookupDrafter(PromptLookupConfig.model_validate(settings), (EOS,))


@pytest.mark.parametrize(
    ("text", "num_following", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, (3, 3)),  # the last three tokens, then what followed them
        ([7, 2, 3, 4, 5, 1, 2, 3], 2, (3, 2)),  # only two match
        ([7, 8, 3, 4, 5, 1, 2, 3], 2, (3, 1)),
        ([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 1, (3, 3)),  # the earliest place, not the latest
        ([5, 3, 7, 7, 1, 2, 3, 4, 4, 1, 2, 3], 2, (7, 3)),  # a longer match before an earlier one
        ([1, 2, 3, 4, 1, 2, 3], 5, (0, 0)),  # four tokens follow, five are to be drafted
        ([1, 2, 3, 4, 1, 2, 3], 4, (3, 3)),  # they may run into the last tokens themselves
        ([4, 4, 4, 4, 4], 1, (3, 3)),
        ([4, 4, 4, 4, 4], 3, (2, 2)),
        ([1, 2, 3], 1, (0, 0)),
        ([1], 1, (0, 0)),
    ],
)
def test_the_longest_match_then_the_earliest_place_is_taken(
    text: list[int], num_following: int, expected: tuple[int, int]
) -> None:
    assert find_repeat(np.array(text, np.int32), 3, num_following) == expected


@pytest.mark.parametrize(
    ("settings", "asked", "max_nodes", "expected"),
    [
        ({}, 3, 32, (4, 5, 6)),
        ({}, 10, 2, (4, 5)),
        ({"num_draft_tokens": 1}, 10, 32, (4,)),
        ({}, 10, 32, ()),  # no ten tokens follow
    ],
)
async def test_a_draft_is_a_chain_of_the_length_that_is_asked_for_or_nothing(
    settings: dict[str, int], asked: int, max_nodes: int, expected: tuple[int, ...]
) -> None:
    [draft] = await drafter(**settings).draft([request([1, 2, 3, 4, 5, 6, 2, 3], asked, max_nodes)])
    assert draft.tree.token_ids == expected
    assert draft.tree.parents == tuple(range(-1, len(expected) - 1))
    assert draft.num_tokens_before_eos == len(draft.confidences) == len(expected)


@pytest.mark.parametrize(
    ("ignore_eos", "expected", "num_before"), [(False, (4, EOS), 1), (True, (4, EOS, 5), 3)]
)
async def test_nothing_is_drafted_after_the_end_of_an_answer(
    ignore_eos: bool, expected: tuple[int, ...], num_before: int
) -> None:
    one = request([2, 3, 4, EOS, 5, 2, 3], 3, ignore_eos=ignore_eos)
    [draft] = await drafter().draft([one])
    assert (draft.tree.token_ids, draft.num_tokens_before_eos) == (expected, num_before)


async def test_a_batch_is_drafted_in_order_each_from_its_own_text() -> None:
    requests = [request([1, 2, 1], 1), request([1, 2, 3], 1), request([5, 6, 7, 5], 2)]
    drafts = await drafter().draft(requests)
    assert [draft.tree.token_ids for draft in drafts] == [(2,), (), (6, 7)]
    assert len({draft.draft_seconds for draft in drafts}) == 1


async def test_confidence_rises_with_the_tokens_matched_and_tells_them_apart() -> None:
    """Each number of tokens matched gets a cell of its own in the coordinator's calibration."""
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    [one] = await drafter(max_ngram_tokens=1).draft([request([*text, 1], 7)])
    [three] = await drafter(max_ngram_tokens=3).draft([request([*text, 1, 2, 3], 5)])
    assert one.confidences[2:7] == three.confidences[:5], "what was drafted is matched too"
    assert all(-math.inf < confidence < 0 for confidence in one.confidences)
    told = [Draft(chain([4]), (confidence,), 1) for confidence in one.confidences[:5]]
    for place, draft in enumerate(told):
        model, new = AcceptanceModel(), AcceptanceModel()
        model.observe(draft, Verdict((5,), ()))
        changed = [model.reach(other) != new.reach(other) for other in told]
        assert changed == [other == place for other in range(5)]
    assert list(one.confidences[:5]) == sorted(one.confidences[:5])


@pytest.mark.parametrize("max_ngram_tokens", [1, 2, 3])
def test_transformers_drafts_the_same_where_its_place_has_a_whole_draft_behind_it(
    max_ngram_tokens: int,
) -> None:
    """Its rule allows shorter drafts: it stops at the earliest place of the longest match.

    Where that place has a whole draft behind it, the rules agree.
    """
    length, rng, num_compared = 6, np.random.default_rng(0), 0
    theirs = PromptLookupCandidateGenerator(
        num_output_tokens=length, max_matching_ngram_size=max_ngram_tokens, max_length=1000
    )
    for _ in range(300):
        text = rng.integers(0, 6, rng.integers(8, 60)).astype(np.int32)
        input_ids: Any = torch.tensor(text[None].astype(np.int64))
        candidates, _ = theirs.get_candidates(input_ids)
        drafted = candidates[0, len(text) :].tolist()
        start, num_matched = find_repeat(text, max_ngram_tokens, length)
        if len(drafted) == length:
            assert num_matched and text[start : start + length].tolist() == drafted
            num_compared += 1
        elif not drafted:
            assert num_matched == 0
    assert num_compared > 150
