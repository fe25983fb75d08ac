"""Load on fake services, in virtual time: who asks when, and what is made of the times."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from diffuspec.bench.load import LoadRun, TimedTokens, ask_all, load_row
from diffuspec.core.errors import OverloadedError
from diffuspec.core.types import Prompt

pytestmark = pytest.mark.virtual_time


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
