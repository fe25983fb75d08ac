"""SERVING means that steps succeed."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import DrafterServicer, VerifierServicer
from diffuspec.rpc.services import DRAFTER_SERVICE, HEALTH_SERVICE, VERIFIER_SERVICE
from tests.rpc.requests import verify_request
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, always_right, oracle_of
from tests.support.serving import connected, serving
from tests.support.virtual_time import Clock

REQUEST = verify_request(1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> StepHealth:
    return StepHealth(max_step_seconds=5.0, clock=clock)


def fail(health: StepHealth, error: BaseException) -> None:
    with pytest.raises(type(error)), health.step():
        raise error


def test_a_role_that_idles_is_healthy_before_the_first_step_and_after_success(health, clock):
    clock.now += 1000
    assert health.is_healthy
    with health.step():
        pass
    clock.now += 1000
    assert health.is_healthy


def test_a_stuck_step_is_unhealthy_until_it_ends(health, clock):
    with health.step():
        clock.now += 5
        assert health.is_healthy
        clock.now += 1
        assert not health.is_healthy
    assert health.is_healthy


def test_a_step_that_waits_while_others_succeed_is_not_stuck(health, clock):
    with health.step():
        for _ in range(4):
            clock.now += 4
            with health.step():
                pass
        assert health.is_healthy
        clock.now += 6
        assert not health.is_healthy


def test_failures_are_unhealthy_until_a_step_succeeds(health, clock):
    fail(health, VerifierError("no"))
    assert not health.is_healthy
    clock.now += 1000
    assert not health.is_healthy
    with health.step():
        pass
    assert health.is_healthy


def test_a_failure_among_successes_is_forgiven_for_a_while(health, clock):
    with health.step():
        pass
    fail(health, VerifierError("no"))
    assert health.is_healthy
    clock.now += 11
    assert not health.is_healthy


def test_what_callers_do_wrong_says_nothing(health):
    fail(health, InvalidRequestError("no"))
    assert health.is_healthy
    fail(health, asyncio.CancelledError())
    assert health.is_healthy


@pytest.mark.virtual_time
async def test_a_role_that_idles_after_a_failure_finds_out_how_it_is():
    health = StepHealth(max_step_seconds=5.0, clock=asyncio.get_running_loop().time)
    is_well, num_checks = True, 0

    async def step() -> None:
        nonlocal num_checks
        num_checks += 1
        if not is_well:
            raise VerifierError("no")

    async with health.checked_when_idle(step):
        await asyncio.sleep(60)
        assert health.is_healthy and 3 <= num_checks <= 7
        is_well = False
        await asyncio.sleep(12)
        assert not health.is_healthy
        await asyncio.sleep(1000)
        assert not health.is_healthy
        is_well = True
        await asyncio.sleep(1.5)
        assert health.is_healthy
        fail(health, VerifierError("no"))
        await asyncio.sleep(100)
        assert health.is_healthy


@pytest.mark.virtual_time
async def test_a_health_check_that_hangs_counts_as_a_step_that_hangs():
    health = StepHealth(max_step_seconds=5.0, clock=asyncio.get_running_loop().time)
    may_end = asyncio.Event()

    async def step() -> None:
        await may_end.wait()

    async with health.checked_when_idle(step):
        await asyncio.sleep(10)
        assert not health.is_healthy
        may_end.set()
        await asyncio.sleep(0.1)
        assert health.is_healthy


@pytest.mark.virtual_time
async def test_a_busy_role_takes_no_check_steps():
    health = StepHealth(max_step_seconds=5.0, clock=asyncio.get_running_loop().time)

    async def step() -> None:
        raise AssertionError("the role is at work")

    async with health.checked_when_idle(step):
        for _ in range(30):
            with health.step():
                await asyncio.sleep(0.5)
            await asyncio.sleep(0.5)
    assert health.is_healthy


async def test_each_service_answers_for_itself(security):
    verifier = FakeVerifier()
    drafter = DrafterServicer(FakeDrafter(oracle_of(verifier), always_right), FAKE_TARGET)
    async with serving(VerifierServicer(verifier), drafter, security=security) as wire:
        remote = await wire.connect(RemoteVerifier)
        verifier.error = VerifierError("no")
        with pytest.raises(VerifierError):
            await remote.verify([REQUEST])
        connection = Connection(wire.address, security, DEFAULT_LIMITS)
        assert not await connection.check_health(VERIFIER_SERVICE, 5)
        assert await connection.check_health(DRAFTER_SERVICE, 5)
        assert not await connection.check_health("", 5)
        verifier.error = None
        await remote.verify([REQUEST])
        assert await connection.check_health(VERIFIER_SERVICE, 5)
        assert await connection.check_health("", 5)
        assert not await connection.check_health("unknown.Service", 5)
        await connection.close()


async def test_a_role_that_hangs_is_not_serving_and_recovers_by_itself(security):
    verifier = FakeVerifier()
    limits = RpcLimits(max_step_seconds=0.1)
    async with connected(verifier, security, limits=limits) as remote:
        assert await remote.check_health(5)
        verifier.gate.close()
        step = asyncio.create_task(remote.verify([REQUEST]))
        await verifier.gate.arrival()
        while await remote.check_health(5):
            await asyncio.sleep(0.01)
        verifier.gate.open()
        await step
        assert await remote.check_health(5)


async def test_changes_can_be_watched(security):
    verifier = FakeVerifier()
    async with RoleServer([VerifierServicer(verifier)], security) as server:
        remote = await RemoteVerifier.connect(server.address, security)
        async with grpc.aio.insecure_channel(server.address) as channel:
            watch: Any = channel.unary_stream(
                f"/{HEALTH_SERVICE}/Watch",
                HealthCheckRequest.SerializeToString,
                HealthCheckResponse.FromString,
            )
            call = watch(HealthCheckRequest(service=VERIFIER_SERVICE), metadata=security.metadata)
            assert (await call.read()).status == HealthCheckResponse.SERVING
            verifier.error = VerifierError("no")
            with pytest.raises(VerifierError):
                await remote.verify([REQUEST])
            assert (await call.read()).status == HealthCheckResponse.NOT_SERVING
            call.cancel()
            unknown = watch(HealthCheckRequest(service="no"), metadata=security.metadata)
            assert (await unknown.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
            unknown.cancel()
        await remote.close()


async def test_a_server_that_ends_says_so_first(security):
    verifier = FakeVerifier()
    async with RoleServer([VerifierServicer(verifier)], security) as server:
        remote = await RemoteVerifier.connect(server.address, security)
        verifier.gate.close()
        step = asyncio.create_task(remote.verify([REQUEST]))
        await verifier.gate.arrival()
        ending = asyncio.create_task(server.__aexit__())
        await asyncio.sleep(0.05)
        assert not await remote.check_health(1)
        verifier.gate.open()
        await ending
        await step
        await remote.close()
