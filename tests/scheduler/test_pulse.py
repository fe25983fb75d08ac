"""The pulse, as other threads see it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from diffuspec.scheduler.pulse import Pulse

pytestmark = pytest.mark.virtual_time


async def test_a_pulse_may_be_asked_while_the_loop_takes_its_event(monkeypatch):
    events: list[Callable[[], None]] = []
    pulse = Pulse(events.append)
    pulse._beat()
    clock = time.monotonic

    def take_meanwhile() -> float:
        events.pop()()
        return clock()

    monkeypatch.setattr(time, "monotonic", take_meanwhile)
    assert pulse.is_beating and not events
    monkeypatch.undo()
    pulse.stop()
