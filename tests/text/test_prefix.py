"""The prefix of a request: its tokens, the text that they release, and what ends them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason
from diffuspec.text.detokenizer import Detokenizer
from diffuspec.text.prefix import Prefix
from tests.support.checkpoints import byte_tokenizer

BYTES = byte_tokenizer()
EOS = 256


def make(committed: tuple[int, ...] = (), has_text: bool = True, **params: Any) -> Prefix:
    sampling = SamplingParams(**params)
    stops, includes_stop = sampling.stop, sampling.include_stop_str_in_output
    detokenizer = Detokenizer(BYTES, stops, includes_stop=includes_stop) if has_text else None
    prompt = np.array([1, 2, 3], np.int32)
    return Prefix(prompt, np.array(committed, np.int32), sampling, (EOS,), detokenizer)


def ids(text: str) -> tuple[int, ...]:
    return tuple(BYTES.encode(text, add_special_tokens=False).ids)


def append(prefix: Prefix, *token_ids: int) -> tuple[tuple[int, ...], str]:
    """Return the tokens that were kept, and their text."""
    before = prefix.num_tokens
    pieces = prefix.append(token_ids)
    kept = tuple(prefix.token_ids[before:].tolist())
    assert len(kept) == len(pieces)
    return kept, "".join(pieces)


def test_tokens_are_appended_with_the_text_that_each_released():
    prefix = make()
    assert prefix.append(ids("aé")) == ["a", "", "é"]
    assert prefix.token_ids.tolist() == [1, 2, 3, *ids("aé")]
    assert (prefix.num_prompt_tokens, prefix.num_tokens) == (3, 6)
    assert prefix.finish_reason is None


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
ENDS: dict[str, tuple[dict[str, Any], tuple[int, ...], int, str, FinishReason]] = {
    # its parameters, what follows, how much of it is kept, its text, and why it ended
    "EOS, kept without text": ({}, (*ids("ab"), EOS, *ids("c")), 3, "ab", STOP),
    "EOS, ignored": (
        {"ignore_eos": True, "max_tokens": 3}, (*ids("a"), EOS, *ids("bc")), 3, "ab", LENGTH,
    ),
    "a stop token though EOS is ignored": (
        {"ignore_eos": True, "stop_token_ids": ids("b")}, (EOS, *ids("abc")), 3, "a", STOP,
    ),
    "max_tokens inside a run": ({"max_tokens": 2}, ids("abcd"), 2, "ab", LENGTH),
    "EOS as the last allowed token": ({"max_tokens": 1}, (EOS,), 1, "", STOP),
    "EOS without a detokenizer": ({"has_text": False}, (*ids("ab"), EOS, 7), 3, "", STOP),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_an_answer_ends_inside_a_run_of_tokens(case: str):
    params, token_ids, num_kept, text, reason = ENDS[case]
    prefix = make(**params)
    assert append(prefix, *token_ids) == (token_ids[:num_kept], text)
    assert prefix.finish_reason is reason


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
    prefix = make(include_stop_str_in_output=includes, **params)
    assert append(prefix, *ids("a"), *end, *ids("d")) == ((*ids("a"), *end), text)
    assert prefix.stop_reason == reason


def test_a_stop_string_cuts_the_text_and_not_the_tokens_that_made_it():
    prefix = make(stop=("bc",))
    assert append(prefix, *ids("ab")) == (ids("ab"), "a")
    assert append(prefix, *ids("cde")) == (ids("c"), "")
    assert prefix.finish_reason is FinishReason.STOP


def test_text_held_back_for_a_stop_string_comes_with_the_last_token():
    prefix = make(stop=("bcd",), max_tokens=3)
    assert prefix.append(ids("abc")) == ["a", "", "bc"]


def test_a_prefix_handed_out_is_read_only_and_does_not_change():
    prefix = make()
    handed_out = prefix.token_ids
    append(prefix, 7)
    assert handed_out.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        handed_out[0] = 9


def test_committed_tokens_come_after_the_prompt_and_count_against_max_tokens():
    prefix = make(committed=ids("ab"), max_tokens=5)
    assert prefix.token_ids.tolist() == [1, 2, 3, *ids("ab")]
    assert (prefix.num_prompt_tokens, prefix.num_left) == (3, 3)
    assert append(prefix, *ids("cdef")) == (ids("cde"), "cde")


@pytest.mark.parametrize(
    ("committed", "params"),
    [((7, EOS), {}), (ids("ab"), {"stop": ("b",)}), (ids("ab"), {"max_tokens": 2})],
)
def test_committed_tokens_that_end_the_answer_are_refused(committed: tuple[int, ...], params: Any):
    with pytest.raises(InvalidRequestError, match="end the request already"):
        make(committed, **params)


def test_it_is_known_beforehand_which_tokens_would_end_the_answer():
    prefix = make(stop_token_ids=(9,))
    assert prefix.is_ended_by([7, EOS]) and prefix.is_ended_by([9])
    assert not prefix.is_ended_by([7, 8]) and not prefix.is_ended_by([])
    assert not make(ignore_eos=True).is_ended_by([EOS])
