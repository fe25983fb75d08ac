"""When a drafter and its path scorer are replaced. No role is real here."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.placement_settings import DrafterSettings
from actors.settings import DeadlineSettings, DrafterProcess
from actors.supervision import drafter_supervisor
from actors.supervision.coordinator_supervisor import CoordinatorSupervisor, Service
from actors.supervision.drafter_supervisor import DrafterSupervisor
from actors.supervision.role_actor import FAILING
from diffuspec.core.errors import DrafterError

PLACEMENT: Any = SimpleNamespace(
    config=SimpleNamespace(deadlines=DeadlineSettings(health_seconds=0.01))
)
PROCESS = DrafterProcess(0, "diffuspec", "0", DrafterSettings(), needs_path_scorer=True)


class FailingDrafter:
    """Stands in for a RoleActor that reports failed steps, and that can draft or cannot."""

    def __init__(self, can_draft: bool) -> None:
        self.can_draft = can_draft
        self.is_dead = False
        self.num_trials = 0

    async def watch(self, interval_seconds: float) -> str:
        await asyncio.sleep(interval_seconds)
        return FAILING

    async def trouble(self, seconds: float) -> str:
        return FAILING

    async def call(self, method: str, *, seconds: float) -> None:
        assert method == "try_draft"
        self.num_trials += 1
        if not self.can_draft:
            raise DrafterError("no draft")

    def kill(self) -> None:
        self.is_dead = True


class Well:
    """Stands in for a RoleActor that stays healthy."""

    ready = None

    async def watch(self, interval_seconds: float) -> str:
        return await asyncio.get_running_loop().create_future()

    async def trouble(self, seconds: float) -> str:
        return ""

    async def call(self, method: str, *arguments: object, seconds: float) -> None:
        assert method == "disconnect_drafter"


WELL: Any = Well()
NO_CLIENT: Any = None


@pytest.mark.virtual_time
async def test_a_drafter_is_dropped_only_when_it_cannot_draft() -> None:
    coordinator, service = CoordinatorSupervisor(PLACEMENT), Service(WELL, NO_CLIENT)
    coordinator._set(service, "")
    drafter: Any = FailingDrafter(can_draft=True)
    supervisor = DrafterSupervisor(PROCESS, PLACEMENT, coordinator)
    supervisor.drafter, supervisor.scorer = drafter, WELL
    watch = asyncio.create_task(supervisor.watch(service))
    await asyncio.sleep(10)
    assert drafter.num_trials > 1 and supervisor.drafter is drafter and not watch.done()
    drafter.can_draft = False
    assert await watch == FAILING
    assert drafter.is_dead and supervisor.drafter is None and supervisor.scorer is not None


@pytest.mark.virtual_time
async def test_a_drafter_has_to_connect_to_a_coordinator_that_was_replaced() -> None:
    coordinator, service = CoordinatorSupervisor(PLACEMENT), Service(WELL, NO_CLIENT)
    coordinator._set(service, "")
    supervisor = DrafterSupervisor(PROCESS, PLACEMENT, coordinator)
    supervisor.drafter = supervisor.scorer = WELL
    watch = asyncio.create_task(supervisor.watch(service))
    await asyncio.sleep(10)
    coordinator._set(Service(WELL, NO_CLIENT), "")
    assert await watch == "the coordinator was replaced"
    assert supervisor.drafter is not None and supervisor.scorer is not None


@pytest.mark.parametrize("can_draft", [True, False])
async def test_after_a_failed_start_a_drafter_that_drafts_is_kept(can_draft: bool) -> None:
    supervisor = DrafterSupervisor(PROCESS, PLACEMENT, CoordinatorSupervisor(PLACEMENT))
    drafter: Any = FailingDrafter(can_draft)
    supervisor.drafter, supervisor.scorer = drafter, WELL
    await supervisor.drop(None, "the coordinator refused the drafter")
    assert (supervisor.drafter is not None) == can_draft and supervisor.scorer is not None


@pytest.mark.virtual_time
async def test_processes_start_before_there_is_a_coordinator_and_end_with_the_supervision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    ended: list[str] = []

    def create(name: str) -> Callable[[DrafterProcess], str]:
        def append(process: DrafterProcess) -> str:
            made.append(f"{name} {process.number}")
            return made[-1]

        return append

    monkeypatch.setattr(drafter_supervisor, "kill", ended.append)
    placement: Any = SimpleNamespace(
        config=PLACEMENT.config,
        has_room=lambda role, tell: asyncio.sleep(0),
        create_drafter=create("drafter"),
        create_path_scorer=create("path scorer"),
    )
    supervisor = DrafterSupervisor(PROCESS, placement, CoordinatorSupervisor(PLACEMENT))
    supervisor.supervise()
    await asyncio.sleep(1)
    assert made == ["drafter 0", "path scorer 0"] and not ended
    await supervisor.halt()
    assert ended == made
