"""A request: its tokens and text, its drafts, and the prompt chunks it is read in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.control.draft_length import FixedDraftLength
from diffuspec.coordinator.request import Request
from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, FinishReason, Verdict
from diffuspec.text.detokenizer import Detokenizer
from tests.support.checkpoints import byte_tokenizer
from tests.support.fakes import make_draft

BYTES = byte_tokenizer()
EOS = 256
TARGET = TargetInfo(vocab_size=258, max_model_len=64, max_sequences=2, eos_token_ids=(EOS,))


def make(sampling: SamplingParams, num_draft_tokens: int = 4, **speculation: object) -> Request:
    return Request(
        "a",
        np.array([1, 2, 3], np.int32),
        sampling,
        SpeculationParams(**speculation),  # type: ignore[arg-type]
        FixedDraftLength(num_draft_tokens),
        (EOS,),
        Detokenizer(BYTES, sampling.stop, includes_stop=sampling.include_stop_str_in_output),
    )


def ids(text: str) -> tuple[int, ...]:
    return tuple(BYTES.encode(text, add_special_tokens=False).ids)


def commit(request: Request, *token_ids: int) -> tuple[tuple[int, ...], str]:
    kept, pieces = request.commit(Verdict(token_ids, ()))
    assert len(kept) == len(pieces)
    return kept, "".join(pieces)


def test_tokens_are_appended_with_the_text_that_each_released():
    request = make(SamplingParams())
    kept, pieces = request.commit(Verdict(ids("aé"), ()))
    assert kept == ids("aé") and pieces == ("a", "", "é")
    assert request.prefix.tolist() == [1, 2, 3, *ids("aé")]
    assert request.num_output_tokens == 3 and request.finish_reason is None


def test_eos_ends_the_answer_inside_a_run_and_is_kept_without_text():
    request = make(SamplingParams())
    assert commit(request, *ids("ab"), EOS, *ids("c")) == ((*ids("ab"), EOS), "ab")
    assert request.finish_reason is FinishReason.STOP
    assert request.num_output_tokens == 3


def test_eos_is_a_token_like_any_other_when_it_is_ignored():
    request = make(SamplingParams(ignore_eos=True, max_tokens=3))
    assert commit(request, *ids("a"), EOS, *ids("bc")) == ((*ids("a"), EOS, *ids("b")), "ab")
    assert request.finish_reason is FinishReason.LENGTH


def test_a_stop_token_id_ends_the_answer_even_when_eos_is_ignored():
    request = make(SamplingParams(ignore_eos=True, stop_token_ids=ids("b")))
    assert commit(request, EOS, *ids("abc")) == ((EOS, *ids("ab")), "a")
    assert request.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("includes", "params", "end", "text", "reason"),
    [
        (False, {"stop": ("bc",)}, ids("bc"), "a", "bc"),
        (True, {"stop": ("bc",)}, ids("bc"), "abc", "bc"),
        (False, {"stop_token_ids": ids("b")}, ids("b"), "a", ids("b")[0]),
        (True, {"stop_token_ids": ids("b")}, ids("b"), "ab", ids("b")[0]),
        (True, {"stop": ("ab",), "stop_token_ids": ids("b")}, ids("b"), "ab", "ab"),
        (True, {}, (EOS,), "a", None),
        (True, {"stop_token_ids": (EOS,)}, (EOS,), "a", None),  # EOS is the reason
        (True, {"stop_token_ids": (EOS,), "ignore_eos": True}, (EOS,), "a", EOS),
        (True, {"max_tokens": 1}, (), "a", None),
    ],
)
def test_what_ends_an_answer_is_told_and_kept_if_wanted(
    includes: bool, params: Any, end: tuple[int, ...], text: str, reason: str | int | None
):
    request = make(SamplingParams(include_stop_str_in_output=includes, **params))
    assert commit(request, *ids("a"), *end, *ids("d")) == ((*ids("a"), *end), text)
    assert request.stop_reason == reason


def test_max_tokens_cuts_inside_a_run():
    request = make(SamplingParams(max_tokens=2))
    assert commit(request, *ids("abcd")) == (ids("ab"), "ab")
    assert request.finish_reason is FinishReason.LENGTH


def test_eos_as_the_last_allowed_token_is_a_stop():
    request = make(SamplingParams(max_tokens=1))
    commit(request, EOS)
    assert request.finish_reason is FinishReason.STOP


def test_a_stop_string_cuts_the_text_and_not_the_tokens_that_made_it():
    request = make(SamplingParams(stop=("bc",)))
    assert commit(request, *ids("ab")) == (ids("ab"), "a")
    assert commit(request, *ids("cde")) == (ids("c"), "")
    assert request.finish_reason is FinishReason.STOP


def test_text_held_back_for_a_stop_string_comes_with_the_last_token():
    request = make(SamplingParams(stop=("bcd",), max_tokens=3))
    _, pieces = request.commit(Verdict(ids("abc"), ()))
    assert pieces == ("a", "", "bc")


def test_a_prefix_handed_out_is_read_only_and_does_not_change():
    request = make(SamplingParams())
    prefix = request.prefix
    commit(request, 7)
    assert prefix.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        prefix[0] = 9


def test_the_draft_is_never_longer_than_what_may_still_be_committed():
    request = make(SamplingParams(max_tokens=4), num_draft_tokens=20)
    lengths = []
    for _ in range(4):
        lengths.append(request.plan_draft())
        commit(request, 7)
    assert lengths == [3, 2, 1, 0]


def read(request: Request, limit: int, *num_unread: int) -> list[bool]:
    """Take a verdict for each number of unread tokens; return whether it verified the draft."""
    return [
        request.reading.take(request.verify_request(limit), Verdict((5,), (), num_unread_tokens=n))
        for n in num_unread
    ]


def test_a_long_prompt_is_read_within_the_limit_and_the_rest_with_the_first_step():
    request = make(SamplingParams())
    asked = request.verify_request(1)
    assert asked.prefix.tolist() == [1, 2, 3] and asked.max_read_tokens == 1
    assert read(request, 1, 2, 1, 0) == [False, False, True]
    assert request.reading.num_read == 2


def test_a_verifier_that_reads_no_further_is_asked_without_a_limit():
    request = make(SamplingParams())
    read(request, 1, 2, 1)
    assert request.verify_request(1).max_read_tokens == 1
    read(request, 1, 2)
    assert request.verify_request(1).max_read_tokens is None
    read(request, 1, 0)
    assert request.verify_request(1).max_read_tokens == 1


@pytest.mark.parametrize("num_unread", [3, 7])
def test_a_verdict_that_leaves_the_whole_prefix_unread_is_refused(num_unread):
    with pytest.raises(VerifierError, match=f"left {num_unread} tokens unread of 3"):
        read(make(SamplingParams()), 1, num_unread)


def test_what_was_cached_is_told_by_the_first_verdict():
    request = make(SamplingParams())
    for number in (1, 2):
        asked = request.verify_request(1)
        request.reading.take(asked, Verdict((5,), (), num_cached_tokens=number))
    assert request.reading.num_cached_tokens == 1


def test_committed_tokens_count_as_read_until_the_cache_is_lost():
    request = make(SamplingParams())
    assert request.reading.num_unread == 3
    commit(request, 7, 8)
    assert request.reading.num_unread == 1
    request.reading.num_read = 0
    assert read(request, 2, 3, 1) == [False, False] and request.reading.num_unread == 1


def test_a_draft_deeper_than_asked_is_cut():
    request = make(SamplingParams(), num_draft_tokens=2)
    request.plan_draft()
    draft = Draft(chain([5, 6, 7, 8]), (-0.1, -0.2, -0.3, -0.4), 4, (5, 6, 7, 8), (5, 6, 7, 8))
    request.take_draft(draft, TARGET)
    assert request.draft.tree == chain([5, 6])
    assert request.draft.confidences == (-0.1, -0.2)
    assert request.draft.drafter_choices == (5, 6)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (make_draft(chain(range(5))), "at most 4 nodes"),
        (Draft(chain([1, 2]), (0.0,), 2), "as many confidences, got 2 and 1"),
        (make_draft(chain([258])), "below 258, got 258"),
        (make_draft(chain([-1])), "0 or more"),
    ],
)
def test_a_wrong_draft_is_refused(draft, message):
    request = make(SamplingParams(), max_nodes=4)
    request.plan_draft()
    with pytest.raises(InvalidRequestError, match=message):
        request.take_draft(draft, TARGET)


def test_an_adaptive_drafter_weight_follows_the_side_that_was_right():
    draft = Draft(chain([5]), (0.0,), 1, (5,), (6,))
    for weight, expected in (("adaptive", True), (0.3, False)):
        request = make(SamplingParams(), drafter_weight=weight)
        before = request.draft_request().drafter_weight
        request.plan_draft()
        request.take_draft(draft, TARGET)
        request.adapt(Verdict((5, 7), (0,)))
        assert (request.draft_request().drafter_weight > before) is expected


def test_a_step_without_a_draft_leaves_the_drafter_weight_alone():
    request = make(SamplingParams(), drafter_weight="adaptive")
    request.adapt(Verdict((5,), ()))
    assert request.draft_request().drafter_weight == 0.65
