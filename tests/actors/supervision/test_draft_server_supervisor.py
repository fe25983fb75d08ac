"""A draft server that is killed is replaced, and tells its load while it serves."""

import asyncio
import os
import signal

import pytest

from actors.draft_pool import DraftServerSupervisor
from actors.placement import LOOPBACK, create_draft_server
from actors.placement_settings import RoleSettings
from diffuspec.core.validation import validate
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.pairs.tiny import TARGET
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.limits import DEFAULT_LIMITS
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.services import DRAFT_SERVICE

CONFIG = validate(
    DraftServerConfig, {"drafter": {"kind": "pld"}, "tokenizer": TARGET, "profile_seconds": 0}
)


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
async def test_a_killed_server_is_replaced_and_a_stopped_one_is_not() -> None:
    security = Security(new_token())
    supervisor = DraftServerSupervisor(
        "draft server 0",
        lambda: create_draft_server(CONFIG, security, RoleSettings(num_cpus=0.5)),
        lambda place: LOOPBACK,
        start_seconds=60,
        health_seconds=0.5,
    )
    assert await supervisor.load() is None and not supervisor.address
    actor = await supervisor.start()
    supervisor.supervise()
    os.kill(actor.place.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        await supervisor.replaced(actor)
        other = await supervisor.current()
    assert other is not None and supervisor.num_starts == 2
    load = await supervisor.load()
    assert load is None or load.num_engines == 0  # None: no answer in time
    connection = Connection(supervisor.address, security, DEFAULT_LIMITS)
    assert await connection.check_health(DRAFT_SERVICE, 10)
    await connection.close()
    await supervisor.halt()
    await supervisor.stop()
    assert not supervisor.address and supervisor.problem == "stopped"
