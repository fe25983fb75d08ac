"""What goes wrong between processes: late, lost, refused, too many, too much."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.core.errors import (
    DrafterError,
    InvalidRequestError,
    VerifierError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import (
    Draft,
    DraftTree,
    TokenLogprobs,
    VerifyRequest,
)
from diffuspec.models.worker import Worker
from diffuspec.rpc.client.roles import RemoteDrafter, RemoteVerifier
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.messages.batches import encode_draft_rows
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import DrafterServicer, VerifierServicer
from diffuspec.rpc.services import DRAFTER_SERVICE
from diffuspec.v1 import drafter_pb2
from tests.rpc.requests import GREEDY, draft_request, verify_request
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, always_right, oracle_of
from tests.support.serving import connected, serving


class SlowVerifier(FakeVerifier):
    """Takes as many hundredths of a second as the last prefix token says."""

    async def verify(self, requests):
        await asyncio.sleep(int(requests[0].prefix[-1]) / 100)
        return await super().verify(requests)


async def test_answers_come_in_any_order(security):
    verifier = SlowVerifier()
    async with connected(verifier, security) as remote:
        finished: list[int] = []

        async def ask(token: int) -> None:
            request = verify_request(1, token, request_id=f"r{token}")
            [found] = await remote.verify([request])
            assert found.token_ids == (verifier.next_token([1, token], GREEDY),)
            finished.append(token)

        await asyncio.gather(*(ask(token) for token in (12, 6, 0)))
        assert finished == [0, 6, 12]


async def test_a_cancelled_call_leaves_the_stream_to_the_others(security):
    verifier = FakeVerifier()
    async with connected(verifier, security) as remote:
        verifier.gate.close()
        calls = [
            asyncio.create_task(remote.verify([verify_request(1, request_id=name)]))
            for name in "abc"
        ]
        await verifier.gate.arrival()
        calls[1].cancel()
        verifier.gate.open()
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        tokens = (verifier.next_token([1], GREEDY),)
        assert [one.token_ids for one in (*results[0], *results[2])] == [tokens, tokens]
        await remote.verify([verify_request(1, 2)])


async def test_a_late_answer_is_an_unavailable_role_and_the_next_call_goes_through(security):
    verifier = FakeVerifier()
    drafter = FakeDrafter(oracle_of(verifier), always_right)
    servicers = (VerifierServicer(verifier), DrafterServicer(drafter, FAKE_TARGET))
    async with serving(*servicers, security=security) as wire:
        remote_verifier = await wire.connect(RemoteVerifier, deadline_seconds=0.1)
        remote_drafter = await wire.connect(RemoteDrafter, deadline_seconds=0.1)
        verifier.gate.close()
        drafter.gate.close()
        with pytest.raises(VerifierUnavailableError, match="before the deadline"):
            await remote_verifier.verify([verify_request(1)])
        with pytest.raises(DrafterError, match="before the deadline"):
            await remote_drafter.draft([draft_request(1)])
        verifier.gate.open()
        drafter.gate.open()
        assert await remote_verifier.verify([verify_request(1, 2)])
        assert await remote_drafter.draft([draft_request(1, 2)])


class BusyVerifier(FakeVerifier):
    """Works in one thread, on one step after the other, while it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.num_begun = 0
        self._worker = Worker("busy", is_inline=False)

    async def verify(self, requests):
        await self._worker.run(self._work)
        return await super().verify(requests)

    def _work(self) -> None:
        self.num_begun += 1
        assert self.may_go_on.wait(10)

    def close(self) -> None:
        self._worker.close()


async def test_steps_that_wait_are_dropped_when_their_client_goes(security):
    verifier = BusyVerifier()
    async with serving(VerifierServicer(verifier), security=security) as wire:
        remote, other = [await wire.connect(RemoteVerifier) for _ in range(2)]
        steps = [asyncio.create_task(remote.verify([verify_request(5, 6)])) for _ in range(3)]
        while not verifier.num_begun:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # the others have arrived
        await remote.close()
        for step in steps:
            with pytest.raises(VerifierUnavailableError):
                await step
        late = asyncio.create_task(other.verify([verify_request(5)]))
        await asyncio.sleep(0.1)
        verifier.may_go_on.set()
        assert len(await late) == 1
        assert verifier.num_begun == 2, "the one that had begun, and the other client's"
    verifier.close()


async def test_a_role_that_fails_says_why_and_the_stream_goes_on(security):
    verifier = FakeVerifier()
    async with connected(verifier, security) as remote:
        for error in (
            VerifierError("the logits are not finite"),
            VerifierUnavailableError("being rebuilt"),
            InvalidRequestError("token ids must be below 50"),
        ):
            verifier.error = error
            with pytest.raises(type(error), match=str(error)):
                await remote.verify([verify_request(1)])
        verifier.error = None
        assert await remote.verify([verify_request(1)])


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            lambda one: [replace(one, token_ids=())],
            "wrong answer.*one token more than accepted nodes, got 0 tokens and 0 nodes",
        ),
        (
            lambda one: [replace(one, accepted_nodes=(0, 1))],
            "wrong answer.*got 1 tokens and 2 nodes",
        ),
        (
            lambda one: [replace(one, logprobs=(TokenLogprobs(-1.0, ()),) * 2)],
            "wrong answer.*one per token, got 2 for 1 tokens",
        ),
        (lambda one: [], "0 results for 1 rows"),
        (lambda one: [one, one], "2 results for 1 rows"),
    ],
)
async def test_a_malformed_response_is_the_roles_failure(spoil, problem, security):
    class Spoilt(FakeVerifier):
        async def verify(self, requests):
            return spoil(*await super().verify(requests))

    async with connected(Spoilt(), security) as remote:
        with pytest.raises(VerifierError, match=problem):
            await remote.verify([verify_request(1)])


@pytest.mark.parametrize("is_done_writing", [False, True])
async def test_a_client_that_reads_no_responses_loses_its_stream(is_done_writing, security):
    wide = tuple([((node, -1.0),) * 100 for node in range(257)])

    def bulky(rng, request, truth):
        tokens = tuple(range(256))
        return Draft(DraftTree(tokens, (-1,) * 256), (0.0,) * 256, 1, alternatives=wide)

    drafter = FakeDrafter(oracle_of(FakeVerifier()), bulky)
    limits = RpcLimits(max_stall_seconds=0.2)
    async with serving(
        DrafterServicer(drafter, FAKE_TARGET), security=security, limits=limits
    ) as wire:
        channel = wire.channel()
        stub: Any = channel.stream_stream(f"/{DRAFTER_SERVICE}/Draft")
        call = stub(metadata=security.metadata)
        store = PrefixStore(10, 1000)
        for step_id in range(1, 100):
            message = drafter_pb2.DraftRequest(step_id=step_id)
            encode_draft_rows(message, [draft_request(1)], store)
            await call.write(message.SerializeToString())
        if is_done_writing:
            await call.done_writing()
        async with asyncio.timeout(10):
            while not drafter.released:
                await asyncio.sleep(0.05)
        call.cancel()


async def test_what_is_not_ours_stays_in_the_log(security, caplog):
    verifier = FakeVerifier()
    verifier.error = ZeroDivisionError("secret")
    async with connected(verifier, security) as remote:
        with pytest.raises(VerifierError, match="see the log") as caught:
            await remote.verify([verify_request(1)])
        assert not isinstance(caught.value, VerifierUnavailableError)
        verifier.error = asyncio.CancelledError()  # such as of a future that the role waits for
        with pytest.raises(VerifierError, match="cancelled the step"):
            await remote.verify([verify_request(1)])
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


async def test_calls_in_flight_are_bounded_on_both_sides(security):
    verifier = FakeVerifier()
    limits = RpcLimits(max_calls_in_flight=2)
    async with serving(VerifierServicer(verifier), security=security, limits=limits) as wire:
        strict = await wire.connect(RemoteVerifier)
        greedy = await wire.connect(RemoteVerifier, limits=RpcLimits(max_calls_in_flight=9))
        verifier.gate.close()
        running = [asyncio.create_task(strict.verify([verify_request(1)])) for _ in range(2)]
        running += [asyncio.create_task(greedy.verify([verify_request(1)])) for _ in range(2)]
        while len(verifier.batches) < 4:
            await asyncio.sleep(0.01)
        with pytest.raises(VerifierUnavailableError, match="2 steps are waiting"):
            await strict.verify([verify_request(1)])
        with pytest.raises(VerifierUnavailableError, match="2 steps of this stream"):
            await greedy.verify([verify_request(1)])
        verifier.gate.open()
        assert len(await asyncio.gather(*running)) == 4
        assert await greedy.verify([verify_request(1)])


async def test_too_much_for_one_message_is_refused_and_the_stream_goes_on(security):
    limits = RpcLimits(max_message_bytes=4096)
    async with serving(VerifierServicer(FakeVerifier()), security=security, limits=limits) as wire:
        remote = await wire.connect(RemoteVerifier)
        with pytest.raises(InvalidRequestError, match="at most 4096 bytes"):
            await remote.verify([verify_request(*[49] * 5000)])
        assert await remote.verify([verify_request(1)])
        careless = await wire.connect(RemoteVerifier, limits=RpcLimits())
        with pytest.raises(VerifierUnavailableError, match="larger than max"):
            await careless.verify([verify_request(*[49] * 5000)])
        assert await careless.verify([verify_request(1)])


async def test_a_server_without_the_prefix_is_sent_it_whole(security):
    verifier = FakeVerifier()
    forgetful = RpcLimits(max_prefixes=1)
    async with serving(VerifierServicer(verifier), security=security, limits=forgetful) as wire:
        remote = await wire.connect(RemoteVerifier, limits=RpcLimits())
        for length in range(1, 5):
            for name in "ab":
                prefix = [ord(name) % 50] * length
                [found] = await remote.verify([verify_request(*prefix, request_id=name)])
                assert found.token_ids == (verifier.next_token(prefix, GREEDY),)
        assert len(verifier.held) == 1  # the role releases what the stream forgets


async def test_calls_fail_when_their_server_ends_and_succeed_at_the_next_one(security):
    verifier = FakeVerifier()
    limits = RpcLimits(grace_seconds=0.05)
    async with RoleServer([VerifierServicer(verifier)], security, limits=limits) as server:
        remote = await RemoteVerifier.connect(server.address, security)
        await remote.verify([verify_request(1, 2)])
        verifier.gate.close()
        waiting = asyncio.create_task(remote.verify([verify_request(1, 2, 3)]))
        await verifier.gate.arrival()
    either = "ended the stream|Cancelling all calls"  # which comes first depends on asyncio
    with pytest.raises(VerifierUnavailableError, match=either):
        await waiting
    with pytest.raises(VerifierUnavailableError):
        await remote.verify([verify_request(1, 2, 3)])
    verifier.gate.open()
    async with RoleServer([VerifierServicer(verifier)], security, port=port_of(server)):
        found = await until_available(remote, verify_request(1, 2, 3))
        assert found.token_ids == (verifier.next_token([1, 2, 3], GREEDY),)
        await remote.close()
    with pytest.raises(VerifierUnavailableError, match="was closed"):
        await remote.verify([verify_request(1)])


def port_of(server: RoleServer) -> int:
    return int(server.address.rpartition(":")[2])


async def until_available(remote: RemoteVerifier, request: VerifyRequest):
    async with asyncio.timeout(10):
        while True:
            try:
                return (await remote.verify([request]))[0]
            except VerifierUnavailableError:
                await asyncio.sleep(0.05)


async def test_a_server_lets_running_steps_finish_when_it_ends(security):
    verifier = FakeVerifier()
    async with RoleServer([VerifierServicer(verifier)], security) as server:
        remote = await RemoteVerifier.connect(server.address, security)
        verifier.gate.close()
        waiting = asyncio.create_task(remote.verify([verify_request(1)]))
        await verifier.gate.arrival()
        asyncio.get_running_loop().call_later(0.1, verifier.gate.open)
    assert (await waiting)[0].token_ids == (verifier.next_token([1], GREEDY),)
    assert not verifier.held
    await remote.close()


async def test_another_target_at_the_same_address_is_refused(security):
    async with RoleServer([VerifierServicer(FakeVerifier())], security) as server:
        remote = await RemoteVerifier.connect(server.address, security)
        await remote.verify([verify_request(1)])
    other = VerifierServicer(FakeVerifier(TargetInfo(51, 512, 4, (17,))))
    async with RoleServer([other], security, port=port_of(server)):
        with pytest.raises(VerifierError, match="is now TargetInfo"):
            await until_available(remote, verify_request(1))
        await remote.close()


SERVER = """
    import asyncio, sys
    from diffuspec.rpc.security import Security
    from diffuspec.rpc.server.server import RoleServer
    from diffuspec.rpc.server.servicers import VerifierServicer
    from tests.support.fakes import FakeVerifier

    class Hanging(FakeVerifier):
        async def verify(self, requests):
            if len(requests[0].prefix) > 1:
                await asyncio.Event().wait()
            return await super().verify(requests)

    async def main():
        servicer = VerifierServicer(Hanging())
        async with RoleServer([servicer], Security(sys.argv[1])) as server:
            print(server.address, flush=True)
            await server.wait()

    asyncio.run(main())
"""


@pytest.fixture
def process(security: Security):
    command = [sys.executable, "-c", textwrap.dedent(SERVER), security.token]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_waiting_calls_fail_at_once_when_their_server_is_killed(process, security):
    remote = await RemoteVerifier.connect(process.stdout.readline().strip(), security)
    await remote.verify([verify_request(1)])
    calls = [asyncio.create_task(remote.verify([verify_request(1, 2)])) for _ in range(3)]
    await asyncio.sleep(0.05)
    process.kill()
    started = time.monotonic()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, VerifierUnavailableError)
    assert time.monotonic() - started < 10  # long before a deadline
    assert not await remote.check_health(1)
    await remote.close()


async def test_a_stopped_server_is_noticed_at_the_deadline(process, security):
    address = process.stdout.readline().strip()
    remote = await RemoteVerifier.connect(address, security, deadline_seconds=0.3)
    await remote.verify([verify_request(1)])
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(VerifierUnavailableError, match="did not answer"):
        await remote.verify([verify_request(1)])
    assert not await remote.check_health(0.3)
    process.send_signal(signal.SIGCONT)
    assert await until_available(remote, verify_request(1))
    await remote.close()


async def test_an_address_without_a_server_is_unavailable(security):
    async with RoleServer([VerifierServicer(FakeVerifier())], security) as server:
        address = server.address
    with pytest.raises(VerifierUnavailableError, match="UNAVAILABLE"):
        await RemoteVerifier.connect(address, security)
    with pytest.raises(DrafterError, match="UNAVAILABLE"):
        await RemoteDrafter.connect(address, security)
