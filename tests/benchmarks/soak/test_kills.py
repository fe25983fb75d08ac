"""Which requests suffer from a kill, and when roles are killed."""

import asyncio
import random
from collections.abc import Sequence

import psutil
import pytest

from benchmarks.chaos import Kind
from benchmarks.soak.kills import Kill, Kills


class FakeService:
    """A service whose roles come back, or do not."""

    def __init__(self, recovers: bool = True) -> None:
        self.kinds: Sequence[Kind] = (Kind.VERIFIER, Kind.PROXY)
        self.asked: list[Kind] = []
        self._recovers = recovers

    def processes(self, kind: Kind) -> set[int]:
        self.asked.append(kind)
        return {7}

    async def is_whole_without(self, killed: int) -> bool:
        return self._recovers


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    pids: list[int] = []

    class Process:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def kill(self) -> None:
            pids.append(self.pid)

    monkeypatch.setattr(psutil, "Process", Process)
    return pids


async def kill_for(seconds: float, service: FakeService) -> Kills:
    done, is_over = Kills(), asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, is_over.set)
    await done.kill_until(is_over, service, random.Random(0), lambda kill: None)  # type: ignore[arg-type]
    return done


@pytest.mark.parametrize(
    ("began", "ended", "is_disturbed"),
    [(0, 9, False), (0, 11, True), (14, 15, True), (29, 31, True), (31, 32, False)],
)
def test_requests_beside_a_kill_or_soon_after_are_disturbed(began, ended, is_disturbed):
    assert Kills([Kill("verifier", 10.0, 20.0)]).disturbed(began, ended) is is_disturbed


def test_a_kill_without_an_end_disturbs_all_that_follows():
    assert Kills([Kill("verifier", 10.0)]).disturbed(1000.0, 1001.0)


@pytest.mark.virtual_time
async def test_roles_are_killed_after_pauses_until_the_end(killed: list[int]):
    service = FakeService()
    done = (await kill_for(300.0, service)).done
    assert 4 <= len(done) == len(killed) <= 15
    assert set(service.asked) == {Kind.VERIFIER}
    assert all(kill.ended is not None for kill in done)


@pytest.mark.virtual_time
async def test_a_service_that_does_not_recover_ends_the_wait(killed: list[int]):
    with pytest.raises(TimeoutError):
        await kill_for(1000.0, FakeService(recovers=False))
