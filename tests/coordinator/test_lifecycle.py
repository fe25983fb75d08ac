from __future__ import annotations

import asyncio
import time

import pytest

from diffuspec.coordinator.lifecycle import Lifecycle

pytestmark = pytest.mark.virtual_time


async def test_the_seconds_of_a_state_add_up_over_its_visits() -> None:
    lifecycle = Lifecycle()
    for state, seconds in (("drafting", 1), ("verifying", 2), ("drafting", 4), ("finished", 8)):
        await asyncio.sleep(seconds)
        lifecycle.enter(state, "a test")  # type: ignore[arg-type]
    assert lifecycle.seconds == pytest.approx({"waiting": 1, "drafting": 2 + 8, "verifying": 4})
    assert (lifecycle.state, lifecycle.waits_for) == ("finished", "a test")
    assert lifecycle.since == time.monotonic()
