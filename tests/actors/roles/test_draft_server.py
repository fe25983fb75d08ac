"""A draft server as an actor of Ray: it drafts, tells its load, and costs drafts when killed."""

import asyncio
import os
import signal
import time

import numpy as np
import pytest

from actors.placement import CONTROL, LOOPBACK, Place, create_draft_server
from actors.placement_settings import RoleSettings
from actors.roles.draft_server import DraftServerActor
from actors.supervision.role_actor import RoleActor, start_actor
from diffuspec.core.errors import ConfigError, WorkerError
from diffuspec.core.validation import validate
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.pairs.tiny import HEADS, TARGET
from diffuspec.rpc.security import Security, new_token
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec_client import DraftClient, Row, Settings
from diffuspec_client.vocabulary import Vocabulary
from tests.support.ports import free_port

SECONDS = 60.0
CONFIG = validate(
    DraftServerConfig, {"drafter": {"kind": "pld"}, "tokenizer": TARGET, "profile_seconds": 0}
)
ROLE = RoleSettings(num_cpus=0.5)


async def start(security: Security, port: int) -> RoleActor[str]:
    handle = create_draft_server(CONFIG, security, ROLE)

    async def serve(place: Place) -> str:
        address: str = await handle.start.remote(LOOPBACK, port)
        return address

    return await start_actor("draft server 0", handle, serve, SECONDS)


def take_steps_until_drafted(client: DraftClient, until: float) -> None:
    """Take steps of a request that repeats itself, which prompt lookup can follow."""
    for size in range(40, 2000):
        tokens = np.array([5 + number % 7 for number in range(size)], np.int32)
        [draft] = client.step([Row("r", tokens, 40)])
        if draft.token_ids:
            return
        assert time.monotonic() < until, "there were no drafts"
        time.sleep(0.01)


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
async def test_a_killed_server_costs_drafts_until_another_serves_at_its_address(tmp_path):
    security, port = Security(new_token()), free_port()
    token_file = tmp_path / "token"
    token_file.write_text(security.token)
    actor = await start(security, port)
    settings = Settings(actor.ready, deadline_seconds=5.0, token_file=str(token_file))
    client = DraftClient(
        settings,
        vocabulary=Vocabulary(load_tokenizer(TARGET).get_vocab()),
        max_model_len=4096,
        max_requests=4,
        max_draft_tokens=8,
    )
    try:
        assert await asyncio.to_thread(client.wait_until_connected, SECONDS)
        drafted = asyncio.to_thread(take_steps_until_drafted, client, time.monotonic() + SECONDS)
        await drafted
        load = await actor.handle.load.options(concurrency_group=CONTROL).remote()
        assert load.num_engines == 1 and load.failing_share == 0
        assert not await actor.trouble(SECONDS)
        os.kill(actor.place.pid, signal.SIGKILL)
        assert await actor.watch(0.2)
        while client.is_connected:
            await asyncio.sleep(0.01)
        [draft] = client.step([Row("r", np.arange(40, dtype=np.int32), 4)])
        assert not draft.token_ids
        actor = await start(security, port)
        assert await asyncio.to_thread(client.wait_until_connected, SECONDS)
        await asyncio.to_thread(take_steps_until_drafted, client, time.monotonic() + SECONDS)
    finally:
        client.close()
        await actor.stop(1)


async def test_before_its_start_and_after_its_end_it_is_not_healthy_and_has_no_load():
    server = DraftServerActor(CONFIG, Security(new_token()))
    assert not await server.is_healthy()
    with pytest.raises(WorkerError, match="the draft server does not serve"):
        await server.load()
    assert (await server.start(LOOPBACK)).startswith(f"{LOOPBACK}:")
    assert await server.is_healthy()
    assert (await server.load()).num_engines == 0
    await server.stop()
    assert not await server.is_healthy()


async def test_a_drafter_that_reads_what_the_target_computes_is_refused():
    given = {"drafter": {"kind": "medusa", "path": HEADS["medusa"]}, "tokenizer": TARGET}
    server = DraftServerActor(validate(DraftServerConfig, given), Security(new_token()))
    with pytest.raises(ConfigError, match="must draft from tokens alone"):
        await server.start(LOOPBACK)


async def test_without_tls_it_serves_on_loopback_alone():
    server = DraftServerActor(CONFIG, Security(new_token()))
    with pytest.raises(ConfigError, match="without TLS"):
        await server.start("0.0.0.0")
