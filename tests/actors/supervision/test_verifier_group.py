"""When ranks are replaced, and the errors of callers meanwhile. No rank is real here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from actors.roles import self_test
from actors.settings import DeadlineSettings
from actors.supervision import supervisor
from actors.supervision.rank_set import RankSet
from actors.supervision.verifier_group import SupervisedVerifier, VerifierGroup
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.errors import (
    ModelLoadError,
    VerifierError,
    VerifierLostError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import HostedDrafter, TargetInfo
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import VerifierServicer
from tests.support.fakes import FAKE_TARGET, FakeVerifier, Gate

DEADLINES = DeadlineSettings(start_seconds=5, verify_seconds=1, health_seconds=0.1)
STEP = [self_test.verify_request(FAKE_TARGET)]


@dataclass(eq=False)
class FakeRanks:
    """Stands in for a RankSet; rank 0's service may be real."""

    address: str = ""
    wrong: str = ""  # what an examination finds
    loss: asyncio.Future[str] = field(default_factory=asyncio.Future)
    is_dead: bool = False

    async def trouble(self) -> str:
        return await self.loss

    async def examine(self) -> str:
        return self.wrong

    async def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.is_dead = True


class Builder:
    """Returns or raises the prepared result of each attempt to start ranks."""

    def __init__(self) -> None:
        self.to_come: list[FakeRanks | Exception] = []
        self.num_builds = 0
        self.gate = Gate()

    async def start(self, *_: object) -> FakeRanks:
        self.num_builds += 1
        await self.gate.passage()
        made = self.to_come.pop(0)
        if isinstance(made, Exception):
            raise made
        return made


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setattr(RankSet, "start", builder.start)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_SECONDS", 0.0)
    return builder


@pytest.fixture
async def group(builder: Builder) -> AsyncIterator[VerifierGroup]:
    group = VerifierGroup(lambda rank: None, 1, DEADLINES, lambda place: LOOPBACK)
    yield group
    await group.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_lost_ranks_are_killed_and_replaced(builder, group):
    first, second = FakeRanks("a:1"), FakeRanks("b:2")
    builder.to_come = [first, VerifierUnavailableError("late"), RuntimeError("of Ray"), second]
    assert (await group.start()).address == "a:1"
    group.supervise()
    assert group.problem == ""
    first.loss.set_result("rank 1 died")
    await until(lambda: bool(group.recoveries))
    assert first.is_dead and not second.is_dead
    assert (await group.ready(1)).address == "b:2"
    [recovery] = group.recoveries
    assert (recovery.reason, recovery.num_attempts) == ("rank 1 died", 3)


async def test_ranks_that_cannot_be_watched_are_replaced(builder, group):
    first = FakeRanks("a:1")
    builder.to_come = [first, FakeRanks("b:2")]
    await group.start()
    group.supervise()
    first.loss.set_exception(OSError("no connection to the cluster"))
    await until(lambda: bool(group.recoveries))
    assert first.is_dead and group.recoveries[0].reason == "no connection to the cluster"
    assert (await group.ready(1)).address == "b:2"


async def test_callers_get_the_reason_why_there_are_no_ranks(builder, group):
    ranks = FakeRanks("a:1")
    builder.to_come = [ranks]
    await group.start()
    group.supervise()
    builder.gate.close()
    ranks.loss.set_result("rank 1 died")
    await until(lambda: group.problem != "")
    with pytest.raises(VerifierUnavailableError, match="being started again: rank 1 died"):
        await group.ready(0.01)


async def test_callers_get_the_reason_why_new_ranks_do_not_start(builder, group, monkeypatch):
    ranks = FakeRanks("a:1")
    builder.to_come = [ranks, OSError("no disk")]
    await group.start()
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(supervisor, "_MAX_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(supervisor, "_STABLE_SECONDS", 0.0)
    group.supervise()
    ranks.loss.set_result("rank 1 died")
    await until(lambda: builder.num_builds == 2)
    with pytest.raises(VerifierUnavailableError, match="being started again: no disk"):
        await group.ready(0.01)


async def test_a_first_start_that_fails_is_not_tried_again(builder, group):
    builder.to_come = [ModelLoadError("no such directory")]
    with pytest.raises(ModelLoadError, match="no such directory"):
        await group.start()
    assert builder.num_builds == 1


# ---- steps that are lost or late


@dataclass
class Service:
    """A supervised verifier whose ranks' service is real."""

    target: FakeVerifier
    ranks: FakeRanks
    verifier: SupervisedVerifier


@pytest.fixture
async def service(
    builder: Builder, group: VerifierGroup, security: Security
) -> AsyncIterator[Service]:
    target = FakeVerifier()
    async with RoleServer([VerifierServicer(target)], security) as server:
        ranks = FakeRanks(server.address)
        builder.to_come = [ranks, FakeRanks(server.address)]
        async with SupervisedVerifier(group, security, deadline_seconds=0.3) as verifier:
            yield Service(target, ranks, verifier)
        target.gate.open()


async def test_verdicts_are_those_of_the_ranks(service):
    assert service.verifier.info == FAKE_TARGET
    [verdict], [expected] = await service.verifier.verify(STEP), await service.target.verify(STEP)
    assert verdict.token_ids == expected.token_ids
    await service.verifier.release(STEP[0].request_id)
    assert await service.verifier.check_health(1)


async def test_an_idle_verifier_is_that_of_new_ranks_with_their_drafters(
    service, builder, security
):
    hosted = HostedDrafter("heads", "127.0.0.1:1")
    other = VerifierServicer(FakeVerifier(), [hosted])
    async with RoleServer([other], security) as server:
        builder.to_come = [FakeRanks(server.address)]
        service.ranks.loss.set_result("rank 0 died")
        await until(lambda: bool(service.verifier.group.recoveries))
        assert service.verifier.drafters == ()
        assert await service.verifier.check_health(1)
        assert service.verifier.drafters == (hosted,)


async def test_after_one_late_step_healthy_ranks_are_kept(service, builder):
    service.target.gate.close()
    with pytest.raises(VerifierUnavailableError, match="did not answer") as caught:
        await service.verifier.verify(STEP)
    assert not isinstance(caught.value, VerifierLostError)
    service.target.gate.open()
    assert len(await service.verifier.verify(STEP)) == 1
    assert builder.num_builds == 1 and not service.ranks.is_dead


@pytest.mark.parametrize(("num_late", "wrong"), [(2, ""), (1, "rank 1 did not answer")])
async def test_after_two_late_steps_or_one_of_unhealthy_ranks_they_are_replaced(
    service, num_late, wrong
):
    service.target.gate.close()
    service.ranks.wrong = wrong
    for _ in range(num_late):
        with pytest.raises(VerifierUnavailableError) as caught:
            await service.verifier.verify(STEP)
    assert isinstance(caught.value, VerifierLostError), "the step at which they are given up"
    service.target.gate.open()
    await until(lambda: service.ranks.is_dead)
    assert len(await service.verifier.verify(STEP)) == 1
    [recovery] = service.verifier.group.recoveries
    assert recovery.reason == wrong if wrong else "did not answer" in recovery.reason


async def test_ranks_are_kept_when_requests_are_at_fault(service, builder):
    service.target.error = VerifierError("not finite")
    for _ in range(3):
        with pytest.raises(VerifierError, match="not finite") as failure:
            await service.verifier.verify(STEP)
        assert not isinstance(failure.value, VerifierUnavailableError)
    assert builder.num_builds == 1


async def test_new_ranks_with_another_target_are_refused(service, builder, security):
    other = FakeVerifier(TargetInfo(51, 512, 4, (1,)))
    async with RoleServer([VerifierServicer(other)], security) as server:
        builder.to_come = [FakeRanks(server.address)]
        service.ranks.loss.set_result("another checkpoint")
        await until(lambda: service.ranks.is_dead)
        with pytest.raises(VerifierError, match=r"the target is now .*vocab_size=51"):
            await service.verifier.verify(STEP)
