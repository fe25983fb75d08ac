"""A prompt is expected right after an answer, if one came in time after the answer before."""

from __future__ import annotations

import asyncio
import time

import pytest

from diffuspec.coordinator.next_prompt import NextPrompt

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]

IN_TIME, TOO_LATE = 0.001, 0.01


async def answer(prompts: NextPrompt, asks_after: float | None) -> bool:
    """End an answer, whose client then asks again or does not; return whether that was expected."""
    prompts.note_end()
    was_due = prompts.is_due
    if asks_after is not None:
        await asyncio.sleep(asks_after)
        prompts.note_prompt()
        assert not prompts.is_due
    else:
        await asyncio.sleep(TOO_LATE)
    return was_due


@pytest.mark.parametrize("not_in_time", [TOO_LATE, None])
async def test_what_came_in_time_once_is_expected_until_it_does_not(not_in_time):
    prompts = NextPrompt()
    asked = [IN_TIME, IN_TIME, not_in_time, IN_TIME, IN_TIME]
    due = [await answer(prompts, asks_after) for asks_after in asked]
    assert due == [False, True, True, False, True]


async def test_a_prompt_is_expected_no_longer_than_a_client_takes():
    prompts = NextPrompt()
    await answer(prompts, IN_TIME)
    prompts.note_end()
    assert prompts.is_due
    await asyncio.sleep(TOO_LATE)
    assert not prompts.is_due


async def test_prompts_that_follow_no_answer_are_no_sign():
    prompts = NextPrompt()
    prompts.note_prompt()
    prompts.note_end()
    assert not prompts.is_due


@pytest.mark.parametrize(("begins_after", "is_in_time"), [(IN_TIME, True), (TOO_LATE, False)])
async def test_a_prompt_that_came_during_a_call_which_kept_the_loop_is_in_time(
    begins_after, is_in_time
):
    prompts = NextPrompt()
    prompts.note_end()
    await asyncio.sleep(begins_after)
    began_at = time.monotonic()
    await asyncio.sleep(TOO_LATE)
    prompts.note_call(began_at)
    prompts.note_prompt()
    prompts.note_end()
    assert prompts.is_due == is_in_time
