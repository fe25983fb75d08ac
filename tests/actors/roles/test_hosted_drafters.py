"""Drafters beside a verifier: named to those that connect, and followed where they go."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from actors.roles import self_test
from actors.roles.coordinator import CoordinatorActor, verifier_at
from actors.roles.hosted_drafters import DrafterBesideVerifier
from actors.roles.verifier import VerifierRank
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import HostedDrafter
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.rpc.client.roles import RemoteDrafter, RemoteVerifier
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import DrafterServicer
from tests.actors.conftest import tiny_pipeline
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, always_right, oracle_of
from tests.support.heads import save_dflash

REQUEST = self_test.draft_request(FAKE_TARGET)


@dataclass
class Host:
    """Stands in for a verifier that is replaced."""

    drafters: tuple[HostedDrafter, ...] = ()


@pytest.fixture
async def addresses(security: Security) -> AsyncIterator[list[str]]:
    """Two servers of a drafter."""
    drafter = FakeDrafter(oracle_of(FakeVerifier()), always_right)
    async with contextlib.AsyncExitStack() as stack:
        servers = [RoleServer([DrafterServicer(drafter, FAKE_TARGET)], security) for _ in range(2)]
        yield [(await stack.enter_async_context(server)).address for server in servers]


async def test_a_drafter_is_asked_where_the_verifier_has_it_now(addresses, security):
    async def connect(address: str) -> RemoteDrafter:
        return await RemoteDrafter.connect(address, security)

    host = Host()
    drafter = DrafterBesideVerifier("heads", host, connect)
    with pytest.raises(DrafterError, match="the verifier does not serve this drafter"):
        await drafter.draft([REQUEST])
    for address in addresses:
        host.drafters = (HostedDrafter("other", "127.0.0.1:1"), HostedDrafter("heads", address))
        [draft] = await drafter.draft([REQUEST])
        assert draft.tree.num_nodes and (await drafter.connected()).address == address
    await drafter.release(REQUEST.request_id)
    host.drafters = (HostedDrafter("heads", problem="no such file"),)
    with pytest.raises(DrafterError, match="no such file"):
        await drafter.draft([REQUEST])
    await drafter.close()


async def test_a_drafter_that_does_not_start_leaves_verifier_and_the_others_up(security, tmp_path):
    tiny = {"hidden_size": 192, "target_layer_ids": [3, 7]}
    save_dflash(tmp_path / "dflash", tiny, num_target_layers=16, vocab_size=None)
    drafters = {"heads": {"kind": "medusa", "path": tmp_path / "nowhere"}}
    first = {"kind": "dflash", "path": tmp_path / "dflash"}
    config = tiny_pipeline({"drafter": first, "drafters": drafters})
    rank, coordinator = VerifierRank(config, security), CoordinatorActor(config, security)
    address = await rank.start("", LOOPBACK)
    remote = await RemoteVerifier.connect(address, security)
    well, ill = remote.drafters
    assert (well.name, well.problem, ill.name, ill.address) == ("dflash", "", "heads", "")
    await remote.close()

    await coordinator.start(lambda: verifier_at(address, config, security), LOOPBACK)
    [reason] = (await coordinator.status()).degraded_reasons
    assert reason.startswith("drafter heads: ") and "nowhere" in reason
    sampling = SamplingParams(max_tokens=32, ignore_eos=True)
    answers = [
        await coordinator.engine.complete(
            "What is the capital of France?",
            sampling,
            SpeculationParams(policy="fixed", num_draft_tokens=4, drafter=name),
        )
        for name in (None, "heads")
    ]
    assert answers[0].token_ids == answers[1].token_ids
    assert [any(step.num_tree_nodes for step in one.steps) for one in answers] == [True, False]
    await coordinator.stop()
    await rank.stop()
