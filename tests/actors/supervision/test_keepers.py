"""What keeps roles alive outlives every error. No role is real here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.settings import DeadlineSettings
from actors.supervision import coordinator_keeper, drafter_keeper
from actors.supervision.coordinator_keeper import CoordinatorKeeper
from actors.supervision.drafter_keeper import DrafterKeeper
from actors.supervision.keeping import keep
from actors.supervision.role_actor import FAILING
from diffuspec.core.errors import DrafterError

PLACEMENT: Any = SimpleNamespace(
    config=SimpleNamespace(deadlines=DeadlineSettings(health_seconds=0.01))
)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coordinator_keeper, drafter_keeper):
        monkeypatch.setattr(module, "_MIN_PAUSE_SECONDS", 0.01)


class Unwatchable:
    """In place of a RoleActor: nothing can be learnt of it."""

    def __init__(self) -> None:
        self.is_dead = False

    async def watch(self, interval_seconds: float) -> str:
        raise OSError("no connection to the cluster")

    def kill(self) -> None:
        self.is_dead = True


class FailingDrafter:
    """In place of a RoleActor: says that its steps fail, and can or cannot take one."""

    def __init__(self, can_draft: bool) -> None:
        self.can_draft = can_draft
        self.is_dead = False
        self.num_proofs = 0

    async def watch(self, interval_seconds: float) -> str:
        await asyncio.sleep(interval_seconds)
        return FAILING

    async def trouble(self, seconds: float) -> str:
        return FAILING

    async def call(self, method: str, *, seconds: float) -> None:
        assert method == "prove"
        self.num_proofs += 1
        if not self.can_draft:
            raise DrafterError("no draft")

    def kill(self) -> None:
        self.is_dead = True


class Well:
    """In place of a RoleActor: nothing ever happens to it."""

    ready = None

    async def watch(self, interval_seconds: float) -> str:
        return await asyncio.get_running_loop().create_future()

    async def trouble(self, seconds: float) -> str:
        return ""

    async def call(self, method: str, *arguments: object, seconds: float) -> None:
        assert method == "disconnect_drafter"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_coordinator_is_started_again_whatever_went_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = CoordinatorKeeper(PLACEMENT)
    actor: Any = Unwatchable()
    await keeper._become(actor, None, "")
    num_starts = 0

    async def start() -> None:
        nonlocal num_starts
        num_starts += 1
        raise [OSError("refused"), RuntimeError("no cluster"), ValueError("what?")][num_starts % 3]

    monkeypatch.setattr(keeper, "start", start)
    keeping = keep(keeper.run(), "keeper")
    await until(lambda: num_starts == 4)
    assert actor.is_dead and not keeping.done() and keeper.reason in ("refused", "no cluster")
    keeping.cancel()


async def test_a_drafter_is_started_again_whatever_went_wrong() -> None:
    coordinator = CoordinatorKeeper(PLACEMENT)
    actor: Any = SimpleNamespace(ready=None)
    await coordinator._become(actor, None, "")
    num_starts = 0

    def create_drafter(index: int) -> None:
        nonlocal num_starts
        num_starts += 1
        raise OSError("no connection to the cluster")

    placement: Any = SimpleNamespace(config=PLACEMENT.config, create_drafter=create_drafter)
    keeper = DrafterKeeper(0, placement, coordinator)
    keeping = keep(keeper.run(), "keeper")
    await until(lambda: num_starts == 3)
    assert keeper.settled.is_set() and keeper.reason == "no connection to the cluster"
    assert not keeping.done()
    keeping.cancel()


@pytest.mark.virtual_time
async def test_a_drafter_goes_only_when_it_cannot_draft_any_more() -> None:
    coordinator = CoordinatorKeeper(PLACEMENT)
    actor: Any = Well()
    drafter: Any = FailingDrafter(can_draft=True)
    await coordinator._become(actor, None, "")
    keeper = DrafterKeeper(0, PLACEMENT, coordinator)
    keeper.drafter, keeper.scorer = drafter, actor
    waiting = asyncio.create_task(keeper._wait_for_trouble(actor))
    await asyncio.sleep(10)
    assert drafter.num_proofs > 1 and keeper.drafter is drafter and not waiting.done()
    drafter.can_draft = False
    await waiting
    assert drafter.is_dead and keeper.drafter is None and keeper.scorer is not None


@pytest.mark.parametrize("can_draft", [True, False])
async def test_what_cannot_be_brought_up_costs_no_drafter_that_drafts(can_draft: bool) -> None:
    keeper = DrafterKeeper(0, PLACEMENT, CoordinatorKeeper(PLACEMENT))
    drafter: Any = FailingDrafter(can_draft)
    scorer: Any = Well()
    keeper.drafter, keeper.scorer = drafter, scorer
    await keeper._drop_the_dead()
    assert (keeper.drafter is not None) == can_draft and keeper.scorer is not None


async def test_work_that_ends_by_an_error_is_not_missed_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise OSError("gone")

    await asyncio.wait([keep(fail(), "the keeper of all")])
    await asyncio.sleep(0)
    assert "the keeper of all has ended" in caplog.text and "OSError: gone" in caplog.text


async def test_processes_come_up_before_there_is_a_coordinator_and_end_if_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    ended: list[str] = []

    def create(name: str) -> Callable[[int], str]:
        def append(index: int) -> str:
            made.append(f"{name} {index}")
            return made[-1]

        return append

    monkeypatch.setattr(drafter_keeper, "kill", ended.append)
    placement: Any = SimpleNamespace(
        config=PLACEMENT.config,
        create_drafter=create("drafter"),
        create_path_scorer=create("path scorer"),
    )
    keeping = keep(DrafterKeeper(0, placement, CoordinatorKeeper(PLACEMENT)).run(), "keeper")
    await until(lambda: len(made) == 2)
    assert made == ["drafter 0", "path scorer 0"] and not ended
    keeping.cancel()
    await until(keeping.done)
    assert ended == made
