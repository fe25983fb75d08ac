"""Masks are computed beside verifications: slow ones hold their own request, and no other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams, StructuredOutput
from diffuspec.core.types import EMPTY_TREE, VerifyRequest
from diffuspec.text.answer_masks import AnswerMasks
from diffuspec.text.answer_matchers import Admitted

SLOW, FAST, BAD, NEW = (StructuredOutput(regex=text) for text in ("slow", "fast", "bad", "new"))
MOMENT = 0.001


class Matchers:
    """Admits nothing: to some forms when it may, and to another never."""

    def __init__(self) -> None:
        self.may_admit = threading.Event()
        self.admitted: list[str] = []
        self.threads: set[int] = set()

    def must_compile(self, request: VerifyRequest) -> bool:
        return request.sampling.structured_output == NEW

    def admit(self, request: VerifyRequest) -> Admitted:
        self.threads.add(threading.get_ident())
        if request.sampling.structured_output in (SLOW, NEW):
            assert self.may_admit.wait(30)
        self.admitted.append(request.request_id)
        if request.sampling.structured_output == BAD:
            raise InvalidRequestError("no text has this form")
        return Admitted([], np.ones((1, 1), np.uint8))

    def release(self, request_id: str) -> None:
        self.admitted.append(f"released {request_id}")


def request(name: str, form: StructuredOutput | None, answer: int = 1) -> VerifyRequest:
    prefix = np.full(1 + answer, 5, np.int32)
    return VerifyRequest(name, prefix, 1, EMPTY_TREE, SamplingParams(structured_output=form))


@pytest.fixture
def matchers() -> Any:
    return Matchers()


async def test_a_slow_mask_holds_its_request_and_no_other(matchers):
    masks = AnswerMasks(matchers, wait_seconds=0.05, alone_seconds=MOMENT)
    slow, fast, free = request("slow", SLOW), request("fast", FAST), request("free", None)
    try:
        assert await masks.admit([slow, free]) == [None, None]
        assert await masks.admit([slow]) == [None], "alone, it waits for a moment as well"
        assert matchers.admitted == []
        matchers.may_admit.set()
        while not (found := await masks.admit([slow]))[0]:
            pass
        assert matchers.admitted == ["slow"], "once, however often it is asked for"
        # Now that its form is known to be slow, others are not behind it.
        matchers.may_admit.clear()
        found = await masks.admit([request("slow", SLOW, 2), fast])
        assert found[0] is None and found[1] is not None
        assert threading.get_ident() not in matchers.threads
    finally:
        matchers.may_admit.set()
        masks.close()


async def test_a_form_that_is_being_compiled_delays_no_other(matchers):
    masks = AnswerMasks(matchers, is_inline=True, wait_seconds=MOMENT, alone_seconds=MOMENT)
    try:
        assert await masks.admit([request("new", NEW)]) == [None]
        [found] = await masks.admit([request("fast", FAST)])
        assert found is not None
    finally:
        matchers.may_admit.set()
        masks.close()


async def test_the_masks_of_an_answer_have_a_budget_of_computing_time(matchers):
    masks = AnswerMasks(matchers, wait_seconds=30, answer_seconds=0)
    await masks.admit([request("a", FAST)])
    with pytest.raises(InvalidRequestError, match="too complex for so long an answer"):
        await masks.admit([request("a", FAST, 2)])
    await masks.admit([request("b", FAST, 2)])
    masks.release("a")
    await masks.admit([request("a", FAST, 2)])
    masks.close()


async def test_nothing_is_kept_of_a_request_released_while_its_masks_are_computed(matchers):
    masks = AnswerMasks(matchers, wait_seconds=MOMENT, alone_seconds=MOMENT)
    assert await masks.admit([request("gone", SLOW)]) == [None]
    while not matchers.threads:  # until it is being computed
        await asyncio.sleep(0)
    masks.release("gone")
    matchers.may_admit.set()
    masks.close()  # after the masks
    assert matchers.admitted == ["released gone", "gone", "released gone"]
    assert not masks.num_requests


async def test_masks_belong_to_the_prefix_that_they_were_asked_for(matchers):
    masks = AnswerMasks(matchers, wait_seconds=30)
    for answer in (1, 2, 2):
        [found] = await masks.admit([request("a", FAST, answer)])
        assert found is not None
    assert matchers.admitted == ["a", "a"]
    masks.release("a")
    await masks.admit([request("a", FAST, 2)])
    assert matchers.admitted == ["a", "a", "released a", "a"]
    masks.close()


async def test_a_form_that_cannot_be_used_is_an_error_whenever_it_is_asked_for(matchers):
    masks = AnswerMasks(matchers, wait_seconds=30)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="no text has this form"):
            await masks.admit([request("a", FAST), request("b", BAD)])
    assert sorted(matchers.admitted) == ["a", "b"]
    masks.close()


async def test_a_target_with_one_place_computes_fast_masks_inline(matchers):
    masks = AnswerMasks(matchers, is_inline=True, wait_seconds=30)
    await masks.admit([request("a", FAST)])
    assert matchers.threads == {threading.get_ident()}
    masks.close()


def test_masks_are_admitted_in_one_loop_after_another(matchers):
    masks = AnswerMasks(matchers, wait_seconds=30)
    for name in "ab":
        assert asyncio.run(masks.admit([request(name, FAST)])) != [None]
    masks.close()
