"""The right answers: plain decoding's, computed once for each distinct request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from benchmarks.soak.answer import Answer
from benchmarks.soak.mixture import Request
from diffuspec.bench.http_client import HttpClient

_NUM_AT_ONCE = 4
_MAX_SECONDS = 120.0
_ONLY_STREAMED = ("stream", "logprobs", "top_logprobs")  # keys that do not affect the tokens


class Oracle:
    """Plain decoding's answers by the names of their requests."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    async def ask(
        self, plain: HttpClient, requests: Sequence[Request], on_answer: Callable[[], None]
    ) -> None:
        """Ask each request of a client whose speculation is off. Raises its errors, TimeoutError.

        `on_answer` is called after each.
        """
        turns = asyncio.Semaphore(_NUM_AT_ONCE)

        async def ask(request: Request) -> None:
            body = {key: value for key, value in request.body.items() if key not in _ONLY_STREAMED}
            async with turns, asyncio.timeout(_MAX_SECONDS):
                answer = Answer()
                answer.add((await plain.answer(body))["choices"])
            self._answers[request.name] = answer
            on_answer()

        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(ask(request))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def problem(self, request: Request, answer: Answer, *, is_whole: bool) -> str | None:
        """Return how an answer differs from the right one; None: they are equal.

        is_whole: the answer ended; otherwise it must be the beginning of the right one.
        """
        expected = self._answers[request.name]
        if expected == answer if is_whole else answer.is_beginning_of(expected):
            return None
        return f"{request.name} must be {expected.choices}, got {answer.choices}"
