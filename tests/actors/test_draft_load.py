"""The load of a draft server is that of its last seconds."""

from types import SimpleNamespace
from typing import Any

import pytest

from actors.draft_load import DraftLoad, DraftLoadMeter


class Scene:
    """A draft service of which only the load is there, and a clock."""

    def __init__(self) -> None:
        self.now = self.busy = self.queued = 0.0
        self.is_well = True
        service: Any = SimpleNamespace(
            sessions=["one", "another"],
            dispatcher=SimpleNamespace(busy=SimpleNamespace(seconds=lambda now: self.busy)),
            metrics=SimpleNamespace(queued=SimpleNamespace(read=lambda: self.queued)),
            is_healthy=lambda: self.is_well,
        )
        self.meter = DraftLoadMeter(service, clock=lambda: self.now)

    def spend(self, seconds: float, busy: float, queued: float = 0.0, is_well: bool = True) -> None:
        """Let time pass in samples of a tenth of a second, with a share of it busy."""
        self.queued, self.is_well = queued, is_well
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.busy += 0.1 * busy
            self.meter.sample()


def test_before_the_first_sample_there_is_no_load():
    assert Scene().meter.load() == DraftLoad(2, 0.0, 0.0, 0.0)


def test_shares_and_the_mean_queue_are_those_of_the_last_seconds():
    scene = Scene()
    scene.spend(20, busy=1.0, queued=9.0, is_well=False)
    scene.spend(5, busy=0.25, queued=3.0)
    load = scene.meter.load()
    assert load.drafting_share == pytest.approx(0.25)
    assert load.num_queued == pytest.approx(3.0)
    assert load.failing_share == 0.0


def test_a_failure_counts_by_the_time_that_it_lasts():
    scene = Scene()
    scene.spend(4, busy=0.0)
    scene.spend(1, busy=0.0, is_well=False)
    assert scene.meter.load().failing_share == pytest.approx(0.2)
