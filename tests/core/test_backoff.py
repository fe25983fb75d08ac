"""Backoff: how long to pause after failures in a row."""

from __future__ import annotations

from diffuspec.core.backoff import Backoff


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
