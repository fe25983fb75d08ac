"""Backoff and breaker: how long to pause after failures in a row, and when to try again."""

from __future__ import annotations

import asyncio
import time

import pytest

from diffuspec.core.backoff import Backoff, Breaker

pytestmark = pytest.mark.virtual_time


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    assert backoff.pause_seconds == 0
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_success_starts_again_from_the_first_pause() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert backoff.pause_seconds == 0
    assert backoff.failed() == 0.5


def test_thousands_of_failures_stay_at_the_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    for _ in range(5000):
        backoff.failed()
    assert backoff.pause_seconds == 3.0


# ---- the breaker


async def until_trial(breaker: Breaker) -> float:
    """Return the seconds until a trial is due."""
    began = time.monotonic()
    while not breaker.may_retry(time.monotonic()):
        await asyncio.sleep(0.25)
    return time.monotonic() - began


async def test_the_breaker_pauses_longer_after_each_failure_up_to_a_limit() -> None:
    breaker, pauses = Breaker(0.5, 30.0), []
    for _ in range(9):
        breaker.failed(time.monotonic())
        pauses.append(await until_trial(breaker))
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


async def test_a_closed_breaker_needs_no_trial() -> None:
    breaker = Breaker(0.5, 30.0)
    assert breaker.is_closed and not breaker.may_retry(time.monotonic() + 99)


async def test_a_success_closes_the_breaker_and_forgets_earlier_failures() -> None:
    breaker = Breaker(0.5, 30.0)
    for _ in range(5):
        breaker.failed(time.monotonic())
    assert not breaker.is_closed
    breaker.succeeded()
    assert breaker.is_closed
    breaker.failed(time.monotonic())
    assert not breaker.is_closed and await until_trial(breaker) == 0.5
