"""Parameters are checked on construction; a refusal names the value and what is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "hot", "temperature must be a number, got 'hot'"),
        ("temperature", True, "temperature must be a number, got True"),
        ("top_p", None, "top_p must be a number, got None"),
        ("top_k", 1.5, r"top_k must be an integer, got 1\.5"),
        ("seed", 1.5, r"seed must be an integer, got 1\.5"),
        ("seed", "7", "seed must be an integer, got '7'"),
        ("max_tokens", True, "max_tokens must be an integer, got True"),
        ("logprobs", 1.0, r"logprobs must be an integer, got 1\.0"),
        ("repetition_penalty", [1], r"repetition_penalty must be a number, got \[1\]"),
        ("stop", 5, "stop must be a string or a list of strings, got 5"),
        ("stop", ["a", 5], r"stop must be a string or a list of strings, got \['a', 5\]"),
        ("stop", "", "stop must be strings of 1 to 256 characters, got a string of 0 characters"),
        ("stop", ["\ud83d"], "stop must be valid Unicode"),
        ("structured_output", {"regex": "\ud83d"}, "regex must be valid Unicode"),
        ("stop", ["a"] * 17, "stop must have at most 16 strings, got 17"),
        ("stop_token_ids", [1] * 65, "stop_token_ids must have at most 64 integers, got 65"),
        ("temperature", 10.5, r"temperature must be from 0 to 10, got 10\.5"),
        ("temperature", float("nan"), "temperature must be from 0 to 10, got nan"),
        ("top_p", 0, "top_p must be above 0 and at most 1, got 0"),
        ("top_k", -1, "top_k must be from 0 to 2147483647, got -1"),
        ("top_k", 2**64, "top_k must be from 0 to 2147483647, got 18446744073709551616"),
        ("logprobs", 21, "logprobs must be from 0 to 20, got 21"),
        ("seed", 2**63, "seed must be from -9223372036854775808 to 9223372036854775807, got"),
        ("stop_token_ids", 5, "stop_token_ids must be a list of integers, got 5"),
        ("stop_token_ids", [1.5], r"stop_token_ids must be integers, got 1\.5"),
        ("stop_token_ids", [-1], "stop_token_ids must be from 0 to 4294967295, got -1"),
        ("allowed_token_ids", [], "allowed_token_ids must have 1 to 1024 integers, got 0"),
        ("allowed_token_ids", [1] * 1025, "must have 1 to 1024 integers, got 1025"),
        (
            "allowed_token_ids",
            {1: 2},
            r"allowed_token_ids must be a list of integers, got \{1: 2\}",
        ),
        ("allowed_token_ids", [2**32], "allowed_token_ids must be from 0 to .*, got 4294967296"),
        ("include_stop_str_in_output", 1, "must be true or false, got 1"),
        ("min_p", 1.5, r"min_p must be from 0 to 1, got 1\.5"),
        ("min_tokens", 257, "min_tokens must be at most max_tokens, 256, got 257"),
        ("logit_bias", {5: 101}, "logit_bias must be from -100 to 100, got 101"),
        ("logit_bias", dict.fromkeys(range(301), 1), "at most 300 entries, got 301"),
        ("logit_bias", [5], r"logit_bias must be a mapping from token ids to numbers, got \[5\]"),
        ("logit_bias", {"a": 1}, "logit_bias must have token ids as its keys, got 'a'"),
        ("bad_words", ["a"] * 65, "bad_words must have at most 64 strings, got 65"),
        ("bad_words_token_ids", [[]], "bad_words_token_ids must be lists of 1 to 513 integers"),
        ("structured_output", {}, "must have exactly one of json_object, .*, grammar, got none"),
        ("structured_output", {"regex": "a", "choice": ["b"]}, "got regex and choice"),
        ("structured_output", {"regexp": "a"}, "must have fields of json_object, .* only"),
        ("structured_output", "json", "a StructuredOutput or a mapping, got 'json'"),
        ("structured_output", {"regex": ""}, "regex must be a string of 1 to 32768 characters"),
        ("structured_output", {"grammar": 5}, "grammar must be a string, got 5"),
        ("structured_output", {"choice": ["a"] * 257}, "choice must have at most 256 strings"),
        ("ignore_eos", "no", "ignore_eos must be true or false, got 'no'"),
    ],
)
def test_wrong_sampling_parameters_are_refused(field, value, message):
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("policy", "cost-aware", "one of paper, cost_aware, fixed, off, got 'cost-aware'"),
        ("policy", ["off"], r"policy must be one of .*, got \['off'\]"),
        ("tree_shape", "bestfirst", "one of path, beams, best_first, got 'bestfirst'"),
        ("num_draft_tokens", 2.5, r"num_draft_tokens must be an integer, got 2\.5"),
        ("max_nodes", 2.5, r"max_nodes must be an integer, got 2\.5"),
        ("max_nodes", True, "max_nodes must be an integer, got True"),
        ("drafter_weight", "much", "drafter_weight must be a number, or 'adaptive', got 'much'"),
        ("num_outcomes", "all", "num_outcomes must be an integer, or 'auto', got 'all'"),
        ("num_outcomes", None, "num_outcomes must be an integer, or 'auto', got None"),
        ("num_outcomes", 17, "num_outcomes must be from 0 to 16, or 'auto', got 17"),
        ("drafter_weight", 1.5, r"drafter_weight must be from 0 to 1, or 'adaptive', got 1\.5"),
        ("drafter", 3, "drafter must be a string, got 3"),
        ("drafter", "x" * 65, "drafter must be a string of 1 to 64 characters, got a string of 65"),
        ("num_draft_tokens", 129, "num_draft_tokens must be from 1 to 128, got 129"),
    ],
)
def test_wrong_speculation_parameters_are_refused(field, value, message):
    with pytest.raises(InvalidRequestError, match=message):
        SpeculationParams(**{field: value})


def test_a_fresh_seed_is_drawn_only_for_sampling_without_a_seed():
    sampled = SamplingParams(temperature=0.5)
    assert sampled.with_seed() != sampled.with_seed()
    for complete in (SamplingParams(), SamplingParams(temperature=0.5, seed=0)):
        assert complete.with_seed() is complete


def test_one_stop_string_is_itself_and_not_its_letters():
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_lists_become_tuples_so_that_parameters_can_be_compared():
    given: dict[str, Any] = {"stop": ["a", "b"], "stop_token_ids": [3]}
    assert hash(SamplingParams(**given)) == hash(
        SamplingParams(stop=("a", "b"), stop_token_ids=(3,))
    )


def test_choices_differ_in_their_seeds_alone():
    sampling = SamplingParams(temperature=0.5, seed=2**63 - 2)
    choices = [sampling.choice(index) for index in range(3)]
    assert [one.seed for one in choices] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert {replace(one, seed=0) for one in choices} == {replace(sampling, seed=0)}
    assert SamplingParams().choice(2) == SamplingParams()


def test_token_ids_of_another_vocabulary_are_refused():
    for name, value in (
        ("stop_token_ids", [3, 50]),
        ("logit_bias", {50: 1}),
        ("allowed_token_ids", [50, 3]),
        ("bad_words_token_ids", [[1, 50]]),
    ):
        given: dict[str, Any] = {name: value}
        SamplingParams(**given).check_token_ids(51)
        with pytest.raises(InvalidRequestError, match=f"{name} must .* 0 to 49, got 50"):
            SamplingParams(**given).check_token_ids(50)


def test_a_structured_output_may_be_given_as_a_mapping():
    given: Any = {"choice": ["a", "b"]}
    sampling = SamplingParams(structured_output=given)
    assert sampling.structured_output == StructuredOutput(choice=("a", "b"))
    assert not SamplingParams().shapes_logits and sampling.shapes_logits


def test_eos_ends_every_structured_output():
    with pytest.raises(
        InvalidRequestError, match="ignore_eos must be false where the answer has a form"
    ):
        SamplingParams(structured_output=StructuredOutput(json_object=True), ignore_eos=True)


def test_numbers_of_numpy_become_plain_ones():
    given: dict[str, Any] = {"seed": np.int64(7), "temperature": np.float32(0.5)}
    sampling = SamplingParams(**given)
    assert sampling == SamplingParams(seed=7, temperature=0.5)
    assert type(sampling.seed) is int and type(sampling.temperature) is float
