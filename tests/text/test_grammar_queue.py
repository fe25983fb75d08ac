"""A grammar queue tries new forms in a helper, remembers the verdicts, and compiles what passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator

import pytest

from diffuspec.core.errors import (
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
    TrialTimeoutError,
)
from diffuspec.core.params import StructuredOutput
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.grammar_queue import GrammarQueue
from diffuspec.text.grammars import Grammars
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec.text.trial_messages import TrialLimits
from tests.support.deadly_helper import COMMAND, CRASHES, WAITS, waits_once
from tests.support.tiny_target import INFO

NEW = StructuredOutput(regex="[ab]+")


class Queue(GrammarQueue):
    def __init__(self, max_waiting: int = 8, wall_seconds: float = 30.0) -> None:
        self.grammars = Grammars.of(TARGET, INFO)
        limits = TrialLimits(wall_seconds=wall_seconds)
        read = lambda: load_tokenizer(TARGET).backend_tokenizer  # noqa: E731
        super().__init__(self.grammars, read, max_waiting, limits, COMMAND)


@pytest.fixture(scope="module")
def queue() -> Generator[Queue]:
    one = Queue()
    one.prepare()
    yield one
    one.close()


async def test_a_form_that_passes_is_compiled(queue):
    await queue.compile(NEW)
    assert queue.grammars.is_compiled(NEW)


async def test_what_was_tried_is_remembered():
    queue = Queue()
    with pytest.raises(
        InvalidRequestError, match="cannot be used: the library that compiles it fails"
    ):
        await queue.compile(CRASHES)
    await queue.compile(NEW)
    queue.trials.close()
    with pytest.raises(
        InvalidRequestError, match="cannot be used: the library that compiles it fails"
    ):
        await queue.compile(CRASHES)
    for number in range(20):  # more than are kept compiled
        queue.grammars.compile(StructuredOutput(regex=f"{number}"))
    assert not queue.grammars.is_compiled(NEW)
    await queue.compile(NEW)
    assert queue.grammars.is_compiled(NEW)
    queue.close()


async def test_a_form_that_was_late_is_tried_again(tmp_path):
    queue, form = Queue(wall_seconds=0.2), waits_once(tmp_path / "tried")
    with pytest.raises(TrialTimeoutError, match="could not be tried: it took too long"):
        await queue.compile(form)
    while not queue.grammars.is_compiled(form):
        with contextlib.suppress(TrialTimeoutError):
            await queue.compile(form)
    queue.close()


async def test_a_form_is_refused_while_too_many_wait():
    queue = Queue(max_waiting=1)
    waiting = [asyncio.create_task(queue.compile(WAITS)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="1 grammars wait to be tried"):
        await queue.compile(NEW)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await queue.compile(NEW)
    queue.close()


async def test_at_the_end_of_the_service_forms_that_wait_or_are_tried_are_refused(queue):
    asked = [asyncio.create_task(queue.compile(WAITS)) for _ in range(3)]
    await asyncio.sleep(0)
    queue.refuse()
    for task in asked:
        with pytest.raises(ShuttingDownError):
            await task
    await queue.compile(StructuredOutput(regex="c+"))


async def test_closing_the_queue_waits_for_no_trial():
    queue = Queue()
    asked = asyncio.create_task(queue.compile(WAITS))
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises((TrialTimeoutError, asyncio.CancelledError)):
        await asked
