"""Masks and admitted nodes depend on the tokens before them alone, however they were reached."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import chain, path_to
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams, StructuredOutput
from diffuspec.core.types import EMPTY_TREE, DraftRequest, DraftTree, VerifyRequest
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.answer_matchers import AnswerMatchers
from diffuspec.text.grammars import Grammars
from tests.support.tiny_target import GRAMMARS, INFO, encode
from tests.support.trees import merge_paths

PROMPT = [5, 6, 7]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = StructuredOutput(json_schema=json.dumps(SCHEMA))
FOREVER = float("inf")
EXPLODING = StructuredOutput(regex="x|((a{1000}){1000}){1000}")
AMBIGUOUS = StructuredOutput(grammar='start: ("a"{1,1000000}){1,1000000}')


@pytest.fixture
def matchers() -> AnswerMatchers:
    return AnswerMatchers(GRAMMARS, FOREVER)


def request(
    answer: list[int], tree: DraftTree = EMPTY_TREE, form: StructuredOutput = FORM, name: str = "a"
) -> VerifyRequest:
    prefix = np.array([*PROMPT, *answer], np.int32)
    return VerifyRequest(name, prefix, len(PROMPT), tree, SamplingParams(structured_output=form))


def allowed(masks: Any) -> list[int]:
    return [int(i) for i in np.unpackbits(masks, bitorder="little").nonzero()[0]]


def test_a_form_is_compiled_once_and_an_answer_that_has_begun_needs_it_no_more() -> None:
    mine = Grammars.of(TARGET, INFO)
    first = AnswerMatchers(mine)
    assert first.must_compile(request([]))
    first.admit(request([]))
    assert not AnswerMatchers(mine).must_compile(request([]))
    for number in range(20):  # more than are kept
        mine.compile(StructuredOutput(regex=f"{number}"))
    assert AnswerMatchers(mine).must_compile(request([])) and not first.must_compile(request([]))


def test_a_tree_is_admitted_as_far_as_the_form_goes(matchers: AnswerMatchers) -> None:
    right = encode('{"name": "Rex", "age": 7}')
    tree = merge_paths([right, [*right[:3], right[0]], [right[1], right[1]]])
    admitted = matchers.admit(request([], tree))
    assert admitted.nodes == list(range(len(right)))
    assert allowed(admitted.masks[-1]) == [2]


def test_eos_is_never_a_node(matchers: AnswerMatchers) -> None:
    answer = encode('{"name": "Rex", "age": 7')
    closing = encode("}")[0]
    admitted = matchers.admit(request(answer, chain([closing, 2, 2])))
    assert admitted.nodes == [0] and allowed(admitted.masks[1]) == [2]


def test_every_row_has_the_mask_of_its_tokens_alone(matchers: AnswerMatchers) -> None:
    """Trees of right and wrong branches, answers that grow, go back and are of another request."""
    rng = random.Random(0)
    texts = ['{"name": "An owl', '{"name": "Rex", "age": 12', '{ "name": ""', '{"name": "Re']
    for _ in range(30):
        text = encode(rng.choice(texts))
        answer = text[: rng.randrange(len(text))]
        drafted = [text[len(answer) :], [rng.randrange(3, 4095)], encode(' and", "age": 3}')]
        tree = merge_paths([*drafted, drafted[0][:2] + drafted[2]])
        name = rng.choice("ab")
        admitted = matchers.admit(request(answer, tree, name=name))
        for row, node in enumerate([-1, *admitted.nodes]):
            said = [tree.token_ids[one] for one in path_to(tree, node)]
            alone = AnswerMatchers(GRAMMARS, FOREVER).admit(request([*answer, *said]))
            assert np.array_equal(alone.masks[0], admitted.masks[row])


def test_an_answer_of_another_form_is_refused(matchers: AnswerMatchers) -> None:
    with pytest.raises(InvalidRequestError, match="the answer so far violates the form"):
        matchers.admit(request(encode("no")))
    matchers.admit(request(encode("{")))  # under the same id


def test_a_draft_beyond_the_limits_leaves_its_answer_as_it_is(matchers: AnswerMatchers) -> None:
    [a, x] = encode("a") + encode("x")
    exploding = matchers.admit(request([], chain([a] * 9), EXPLODING))
    assert len(exploding.nodes) < 9 and allowed(exploding.masks[0]) == [a, x]
    assert matchers.admit(request([], chain([x]), EXPLODING)).nodes == []
    assert allowed(matchers.admit(request([x], form=EXPLODING)).masks[0]) == [2]
    other = matchers.admit(request([], chain([x]), EXPLODING, name="b"))
    assert other.nodes == [0], "another request of this form is as well off as before"


def test_an_answer_beyond_the_limits_is_refused(matchers: AnswerMatchers) -> None:
    with pytest.raises(InvalidRequestError, match="structured_output cannot be used"):
        matchers.admit(request(encode("a") * 200, form=AMBIGUOUS))


def test_what_is_forced_is_the_only_next_token(matchers: AnswerMatchers) -> None:
    prefix = np.array(PROMPT, np.int32)
    sampling = SamplingParams(structured_output=StructuredOutput(regex="The [a-z]+ is x"))
    [the, space, word, is_, *_] = encode("The of is x")
    guide = matchers.guide(
        DraftRequest("a", prefix, 8, "path", 8, 0.5, sampling, num_prompt_tokens=len(prefix))
    )
    assert guide is not None
    assert guide.next_tokens([], [space, word]) == [the]
    assert guide.next_tokens([the], [the, 2, space, is_]) == [space, is_]
    assert guide.next_tokens([word], [the]) == []


def test_only_so_many_answers_are_kept(matchers: AnswerMatchers) -> None:
    for number in range(40):
        matchers.admit(request(encode("{"), name=str(number)))
    assert len(matchers._matchers) == 2 * INFO.max_sequences
    matchers.release("39")
    matchers.release("unknown")
    assert len(matchers._matchers) == 2 * INFO.max_sequences - 1


def test_drafts_are_admitted_as_far_as_there_is_time_and_the_answer_goes_on() -> None:
    right = encode('{"name": "Rex", "age": 7}')
    admitted = AnswerMatchers(GRAMMARS, -1.0).admit(request([], chain(right)))
    assert admitted.nodes == [] and allowed(admitted.masks[0])
