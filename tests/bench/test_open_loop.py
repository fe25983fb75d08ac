"""Requests that come at a rate, in virtual time."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from diffuspec.bench.load import TimedTokens
from diffuspec.bench.open_loop import RateRun, arrival_times, ask_at_rate, rate_table
from diffuspec.core.errors import OverloadedError
from diffuspec.core.types import Prompt

pytestmark = pytest.mark.virtual_time

PROMPTS: list[Prompt] = [[7]] * 20


class SmallService:
    """Answers each prompt in two seconds, three at a time."""

    def __init__(self) -> None:
        self.num_running = 0
        self.begun_at: list[float] = []

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        self.begun_at.append(time.monotonic())
        if self.num_running == 3:
            raise OverloadedError("full")
        self.num_running += 1
        try:
            for _ in range(2):
                await asyncio.sleep(1)
                yield TimedTokens(time.monotonic(), 1, "x")
        finally:
            self.num_running -= 1


async def test_requests_come_whether_or_not_earlier_ones_are_answered():
    service = SmallService()
    await ask_at_rate(service, PROMPTS, 1.0, max_tokens=2)
    after = [at - service.begun_at[0] for at in service.begun_at]
    assert after == pytest.approx(arrival_times(1.0, len(PROMPTS)))


async def test_what_a_full_service_refuses_is_counted():
    run = await ask_at_rate(SmallService(), PROMPTS, 4.0, max_tokens=2)
    assert run.num_refused > 0 and len(run.answers) + run.num_refused == len(PROMPTS)
    assert {answer.first_token_seconds for answer in run.answers} == {1}
    assert run.tokens_per_second == pytest.approx(2 * len(run.answers) / run.seconds)


def test_gaps_between_arrivals_have_the_rates_mean():
    times = arrival_times(2.0, 2001)
    assert times[0] == 0 and times[-1] == pytest.approx(1000, rel=0.1)


def test_a_rate_at_which_nothing_was_answered_has_no_times():
    [row] = rate_table([("off", RateRun(4.0, 1.0, (), 3))]).cells
    assert row == ("off", "4", "0", "3", "0", "-", "-", "-")
