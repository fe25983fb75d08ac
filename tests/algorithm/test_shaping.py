"""The masks and the bias of a request, each row by the tokens before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diffuspec.algorithm.shaping import History, shape
from diffuspec.core.params import SamplingParams, StructuredOutput

EOS = 9
PREFIX = np.array([5, 6, 1, 2], np.int32)  # a prompt of two tokens, an answer of two
UNIFORM = torch.zeros(1, 10)


def shape_rows(paths: list[tuple[int, ...]], **params: Any) -> torch.Tensor:
    """Shape rows of equal logits after the prefix and these paths."""
    history = History(PREFIX, 2, paths)
    positions = [len(PREFIX) + len(path) for path in paths]
    sampling = SamplingParams(**params)
    return shape(UNIFORM.expand(len(paths), -1), sampling, positions, history, (EOS,))


def masked(logits: torch.Tensor) -> list[list[int]]:
    return [row.isneginf().nonzero().flatten().tolist() for row in logits]


def test_no_end_comes_before_min_tokens() -> None:
    found = shape_rows([(), (3,), (3, 3)], min_tokens=4, stop_token_ids=(4,))
    assert masked(found) == [[4, 9], [4, 9], []]


def test_the_last_token_of_a_bad_word_is_masked_after_its_others() -> None:
    bad = ((2, 7), (1, 2, 3, 8), (6, 1, 2, 5), (0,))
    found = shape_rows([(), (3,), (2,)], bad_words_token_ids=bad)
    assert masked(found) == [[0, 7], [0, 8], [0, 7]]  # (6, 1, 2, 5) would begin in the prompt


def test_a_row_after_unknown_tokens_is_masked_as_far_as_known() -> None:
    sampling = SamplingParams(bad_words_token_ids=((2, 7), (0,)), min_tokens=4)
    history = History(PREFIX, 2, [(), ()])
    found = shape(UNIFORM.expand(2, -1), sampling, [4, 6], history, (EOS,))
    assert masked(found) == [[0, 7, 9], [0]]


def test_only_allowed_tokens_are_left_and_other_masks_hold_among_them() -> None:
    found = shape_rows([(), (3, 3)], allowed_token_ids=(1, 4, 7, EOS), min_tokens=4)
    assert masked(found) == [[0, 2, 3, 5, 6, 8, 9], [0, 2, 3, 5, 6, 8]]
    found = shape_rows([()], allowed_token_ids=(1, 4, 7), bad_words_token_ids=((2, 7),))
    assert masked(found) == [[0, 2, 3, 5, 6, 7, 8, 9]]


def test_a_bias_brings_no_token_back_that_is_not_allowed() -> None:
    found = shape_rows([()], allowed_token_ids=(1, 4), logit_bias={0: 100, 4: 1.5})
    assert masked(found) == [[0, 2, 3, 5, 6, 7, 8, 9]]
    assert found[0, 4] == 1.5


@pytest.mark.parametrize(
    "params", [{"bad_words_token_ids": ((4,),)}, {"min_tokens": 9, "stop_token_ids": (4,)}]
)
def test_where_the_only_allowed_token_is_banned_the_ban_gives_way(params: dict[str, Any]) -> None:
    found = shape_rows([()], allowed_token_ids=(4,), **params)
    assert found.isfinite().nonzero().tolist() == [[0, 4]]


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.5}])
def test_filters_keep_none_but_allowed_tokens(filters: dict[str, Any]) -> None:
    found = shape_rows([()], allowed_token_ids=(2, 8), temperature=0.7, seed=1, **filters)
    assert found.isfinite().nonzero().tolist() == [[0, 2], [0, 8]]


def test_masks_give_way_where_they_leave_no_token() -> None:
    bad = tuple((token,) for token in range(10))
    assert masked(shape_rows([()], bad_words_token_ids=bad)) == [[]]


@pytest.mark.parametrize(("min_p", "num_kept"), [(0.0, 4), (0.2, 3), (0.5, 2), (1.0, 1)])
def test_min_p_is_a_share_of_the_likeliest_after_the_temperature(
    min_p: float, num_kept: int
) -> None:
    logits = torch.tensor([[0.5, 0.49, 0.3, 0.1]]).log()  # squared: 1, 0.96, 0.36, 0.04
    sampling = SamplingParams(temperature=0.5, seed=0, min_p=min_p)
    shaped = shape(logits, sampling, [4], History(PREFIX, 2, ()), (EOS,))
    assert shaped.isfinite().sum() == num_kept


def test_a_bias_is_added_before_penalties_and_temperature() -> None:
    found = shape_rows(
        [()], logit_bias={1: 2.0, 3: -1.0}, repetition_penalty=2.0, temperature=0.5, seed=0
    )
    assert found[0, [0, 1, 3]].tolist() == [0.0, 2.0, -2.0]  # 1 is in the answer


@pytest.mark.parametrize(
    ("masks", "params", "left"),
    [
        ([[0b00100100, 0b10], [0, 1]], {"min_tokens": 9}, [[0, 2], [0, 5], [1, 8]]),  # 9 is EOS
        ([[0, 0b10]], {"min_tokens": 9}, [[0, EOS]]),
        ([[0b00100100, 0], [0, 0b10]], {"allowed_token_ids": (5, 6)}, [[0, 5], [1, EOS]]),
    ],
    ids=["others hold", "min_tokens gives way to an end", "allowed tokens give way to others"],
)
def test_only_ids_in_the_masks_of_a_form_are_left(
    masks: list[list[int]], params: dict[str, Any], left: list[list[int]]
) -> None:
    history = History(PREFIX, 2, [()] * len(masks), np.array(masks, np.uint8))
    sampling = SamplingParams(structured_output=StructuredOutput(json_object=True), **params)
    found = shape(torch.zeros(len(masks), 19), sampling, [4, 5][: len(masks)], history, (EOS,))
    assert found.isfinite().nonzero().tolist() == left


def test_given_logits_stay_as_they_are() -> None:
    logits = torch.zeros(1, 10)
    sampling = SamplingParams(
        logit_bias={1: 2.0}, bad_words_token_ids=((0,),), allowed_token_ids=(0, 1, 2)
    )
    shape(logits, sampling, [4], History(PREFIX, 2, [()]), (EOS,))
    assert not logits.any()
