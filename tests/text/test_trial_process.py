"""A form is tried in a process of its own: whatever it does there, others are tried, and soon."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from diffuspec.core.params import StructuredOutput
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.trial_messages import Setup, TrialLimits, Verdict
from diffuspec.text.trial_process import TrialProcess
from tests.support.deadly_helper import (
    ABORTS,
    COMMAND,
    CRASHES,
    FAILS,
    FILLS_MEMORY,
    SPINS,
    WAITS,
    waits_once,
)
from tests.support.tiny_target import INFO

GOOD = StructuredOutput(regex="[ab]+")
UNUSABLE = "structured_output cannot be used: "


def process(limits: TrialLimits | None = None) -> TrialProcess:
    text = (TARGET / "tokenizer.json").read_text(encoding="utf-8")
    return TrialProcess(lambda: Setup(text, INFO, limits or TrialLimits()), COMMAND)


@pytest.fixture(scope="module")
def trials() -> Generator[TrialProcess]:
    one = process()
    yield one
    one.close()


async def tried_by(file: Path) -> int:
    """Wait for the trial of `waits_once(file)`; return the id of its process."""
    await until(file.exists)
    return int(file.read_text())


def is_running(pid: int | None) -> bool:
    return Path(f"/proc/{pid}/exe").exists()  # not of one that has ended and is not waited for


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (CRASHES, "the library that compiles it fails (SIGSEGV)"),
        (FAILS, "the library that compiles it fails (an internal error)"),
        (SPINS, "it is too complex: it takes more than 1 s to compile and try"),
        (
            FILLS_MEMORY,
            "it is too complex: it takes more than 128 MiB of memory to compile and try",
        ),
        (ABORTS, "it is too complex: it takes more than 128 MiB of memory to compile and try"),
        (StructuredOutput(regex="("), "the regular expression is wrong: unclosed group"),
    ],
)
async def test_a_form_that_ends_its_trial_is_refused_with_the_reason(trials, form, reason):
    assert await trials.try_form(GOOD) == Verdict("passed")
    pid = trials.pid
    assert await trials.try_form(form) == Verdict("refused", UNUSABLE + reason)
    assert await trials.try_form(GOOD) == Verdict("passed")
    assert trials.pid == pid, "the helper lives"


async def test_others_are_tried_beside_a_form_that_takes_long_and_ends_with_its_client(
    trials, tmp_path
):
    waiting = asyncio.create_task(trials.try_form(waits_once(tmp_path / "tried")))
    tried = await tried_by(tmp_path / "tried")
    assert await trials.try_form(GOOD) == Verdict("passed")
    assert is_running(tried)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: not is_running(tried))


async def test_a_form_is_late_by_the_clock_only():
    trials = process(TrialLimits(wall_seconds=0))
    assert await trials.try_form(WAITS) == Verdict("late", "it took too long by the clock")
    trials.close()


async def test_a_form_whose_child_fails_before_it_has_the_form_is_late():
    wrong: Any = "many"  # so that the child cannot limit itself
    trials = process(TrialLimits(cpu_seconds=wrong))
    late = Verdict("late", "the process that was to try it has failed")
    assert await trials.try_form(GOOD) == late
    trials.close()


async def test_a_killed_helper_is_started_again(trials):
    await trials.try_form(GOOD)
    killed, link = trials.pid, trials._running._control
    os.kill(killed, signal.SIGKILL)
    await until(lambda: trials._running.has_ended)
    assert await trials.try_form(GOOD) == Verdict("passed")
    assert trials.pid != killed and link.fileno() == -1, "its socket is closed"


async def test_a_form_whose_child_the_system_kills_is_late_and_may_be_sent_again(trials, tmp_path):
    form = waits_once(tmp_path / "tried")
    waiting = asyncio.create_task(trials.try_form(form))
    os.kill(await tried_by(tmp_path / "tried"), signal.SIGKILL)
    assert (await waiting).outcome == "late"
    assert await trials.try_form(form) == Verdict("passed")


async def test_helpers_killed_twice_at_a_trial_end_it(trials):
    await trials.try_form(GOOD)
    waiting = asyncio.create_task(trials.try_form(WAITS))
    killed = set()
    for _ in range(2):
        await until(lambda: trials.pid not in killed)
        killed.add(trials.pid)
        os.kill(trials.pid, signal.SIGKILL)
    assert (await waiting).outcome == "late"
    assert await trials.try_form(GOOD) == Verdict("passed")


async def test_closing_ends_helper_and_trials_without_waiting_for_them(tmp_path):
    trials = process()
    waiting = asyncio.create_task(trials.try_form(waits_once(tmp_path / "tried")))
    processes = (trials.pid, await tried_by(tmp_path / "tried"))
    trials.close()
    assert (await waiting).outcome == "late"
    await until(lambda: not any(map(is_running, processes)))


async def test_signals_to_the_service_do_not_end_its_helper(trials):
    await trials.try_form(GOOD)
    pid = trials.pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert await trials.try_form(GOOD) == Verdict("passed") and trials.pid == pid


def test_a_helper_serves_one_event_loop_after_another(trials):
    for _ in range(2):
        assert asyncio.run(trials.try_form(GOOD)) == Verdict("passed")
