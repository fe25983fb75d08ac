"""Steps survive encoding and decoding, and other messages are refused."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.core.errors import VerifierError
from diffuspec.core.params import SamplingParams, StructuredOutput
from diffuspec.core.types import DraftTree, VerifyRequest
from diffuspec.models.tensor_parallel.step_message import Step, decode_step, encode_step
from diffuspec.text.answer_matchers import Admitted

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=8)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
    stop_token_ids=TOKENS.map(tuple),
    structured_output=st.none() | st.builds(StructuredOutput, regex=st.text(min_size=1)),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3),
    bad_words_token_ids=st.lists(TOKENS.filter(len).map(tuple), max_size=2).map(tuple),
    allowed_token_ids=st.none() | TOKENS.filter(len).map(tuple),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
)
REQUESTS = st.builds(
    VerifyRequest,
    request_id=st.text(max_size=10),
    prefix=TOKENS.map(lambda ids: np.array(ids, np.int32)),
    num_prompt_tokens=st.integers(0, 100),
    tree=TOKENS.map(lambda ids: DraftTree(tuple(ids), tuple(range(-1, len(ids) - 1)))),
    sampling=SAMPLING,
)
ADMITTED = st.integers(0, 3).map(
    lambda n: Admitted([*range(n)], np.arange(2 + 2 * n, dtype=np.uint8).reshape(1 + n, 2))
)
STEPS = st.builds(
    Step,
    number=st.integers(1, 2**40),
    released=st.lists(st.text(max_size=5), max_size=3),
    requests=st.lists(REQUESTS, max_size=3),
    admitted=st.lists(st.none() | ADMITTED, max_size=3),
    is_last=st.booleans(),
)


@settings(max_examples=20)  # each takes a tenth of a second to draw
@given(STEPS)
def test_a_step_arrives_as_it_was_sent(step: Step) -> None:
    arrived = decode_step(encode_step(step))
    assert (arrived.number, arrived.released, arrived.is_last) == (
        step.number,
        step.released,
        step.is_last,
    )
    for put, found in zip(step.admitted, arrived.admitted, strict=True):
        assert (put is None) == (found is None)
        if put is not None and found is not None:
            assert put.nodes == found.nodes and np.array_equal(put.masks, found.masks)
    assert len(arrived.requests) == len(step.requests)
    for sent, got in zip(step.requests, arrived.requests, strict=True):
        assert got.prefix.dtype == np.int32 and got.prefix.tolist() == sent.prefix.tolist()
        for name in (field.name for field in fields(VerifyRequest) if field.name != "prefix"):
            assert getattr(got, name) == getattr(sent, name)


@given(STEPS, st.data())
def test_a_step_that_is_cut_short_is_refused(step: Step, data: st.DataObject) -> None:
    message = encode_step(step)
    size = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(VerifierError, match="cannot be read"):
        decode_step(message[:size])


@given(st.binary(max_size=200))
def test_anything_else_is_refused(message: bytes) -> None:
    with pytest.raises(VerifierError, match="cannot be read"):
        decode_step(message)
