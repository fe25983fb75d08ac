"""Load on fake services, in virtual time: who asks when, and what is made of the times."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from diffuspec.bench.load import (
    LoadRun,
    RateRun,
    TimedTokens,
    arrival_times,
    ask_all,
    ask_at_rate,
    load_row,
    rate_table,
)
from diffuspec.core.errors import OverloadedError
from diffuspec.core.types import Prompt

pytestmark = pytest.mark.virtual_time
PROMPTS: list[Prompt] = [[7]] * 20


class FakeService:
    """Answers with the prompt's number of tokens: the first after 3 seconds, then one a second."""

    def __init__(self) -> None:
        self.num_running = self.most_running = 0

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(2)
            yield TimedTokens(time.monotonic(), 0, "")
            for _ in range(min(len(prompt), max_tokens)):
                await asyncio.sleep(1)
                yield TimedTokens(time.monotonic(), 1, "x")
        finally:
            self.num_running -= 1


@pytest.mark.parametrize("concurrency", [1, 3, 5])
async def test_every_prompt_is_asked_once_so_many_at_a_time(concurrency):
    service, prompts = FakeService(), [[7] * n for n in (4, 1, 3, 2, 5)]
    run = await ask_all(service, prompts, concurrency, max_tokens=4)
    assert service.most_running == concurrency == run.concurrency
    assert [answer.text for answer in run.answers] == ["xxxx", "x", "xxx", "xx", "xxxx"]
    assert {answer.first_token_seconds for answer in run.answers} == {3}
    paces = [answer.seconds_per_token for answer in run.answers]
    assert paces == [1, None, 1, 1, 1]


async def test_throughput_counts_while_all_are_busy_only():
    run = await ask_all(FakeService(), [[7] * 10, [7] * 2], 2, max_tokens=20)
    assert run.full_seconds == 4
    assert run.tokens_per_second == (2 + 2) / 4


async def test_a_row_summarises_all_repeats():
    service = FakeService()
    fast = await ask_all(service, [[7] * 3], 1, max_tokens=9)
    slow = LoadRun(1, fast.started_at, 2 * fast.full_seconds, fast.answers, 1.0)
    row = load_row("fake", [fast, slow, fast])
    assert (row.system, row.concurrency, row.num_answers, row.num_tokens) == ("fake", 1, 3, 9)
    assert row.tokens_per_second == fast.tokens_per_second == 3 / 5
    assert (row.first_token_p50, row.first_token_p99) == (3000, 3000)
    assert (row.per_token_p50, row.per_token_p99) == (1000, 1000)


async def test_the_error_of_a_service_ends_the_run():
    class Refusing(FakeService):
        async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
            if len(prompt) == 2:
                raise OverloadedError("try again later")
            async for part in super().stream(prompt, max_tokens):
                yield part

    service = Refusing()
    with pytest.raises(OverloadedError):
        await ask_all(service, [[7] * 5, [7] * 2], 2, max_tokens=9)
    assert not service.num_running


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
