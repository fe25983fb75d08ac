"""Draft servers as actors of Ray: one by itself, one that is watched, and a pool of them."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from actors import draft_pool
from actors.draft_pool import DraftPool, DraftPoolConfig, DraftServerSupervisor
from actors.placement import create_draft_server
from actors.placement_settings import RoleSettings
from actors.roles.draft_server import DraftServerActor
from deploy.draft_pool import read_pool
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.errors import ConfigError, WorkerError
from diffuspec.core.validation import validate
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.pairs.tiny import TARGET
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.draft_proxy import DraftProxy
from diffuspec.rpc.limits import DEFAULT_LIMITS
from diffuspec.rpc.security import Security, TlsFiles, new_token
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.services import DRAFT_SERVICE
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec_client import DraftClient, Row, Settings
from diffuspec_client.vocabulary import Vocabulary

SERVER = {"drafter": {"kind": "pld"}, "tokenizer": TARGET, "profile_seconds": 0}
CONFIG = validate(DraftServerConfig, SERVER)
VOCABULARY = Vocabulary(load_tokenizer(TARGET).get_vocab())
SECONDS = 90.0


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


async def test_without_tls_it_serves_on_loopback_alone():
    server = DraftServerActor(CONFIG, Security(new_token()))
    with pytest.raises(ConfigError, match="without TLS"):
        await server.start("0.0.0.0")


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


@asynccontextmanager
async def pool_of(path: Path, **scaling: float) -> AsyncIterator[tuple[DraftPool, DraftProxy]]:
    config = validate(
        DraftPoolConfig,
        {
            "server": SERVER,
            "resources": {"num_cpus": 0.1},
            "scaling": scaling,
            "health_seconds": 2,
        },
    )
    security = Security(new_token())
    proxy = DraftProxy(security)
    front = RoleServer([proxy], Security(new_token(), is_open=True), f"unix:{path}")
    async with DraftPool(config, security, proxy) as pool, front:
        yield pool, proxy


async def test_if_one_server_of_a_pool_cannot_start_the_others_are_not_started_either(monkeypatch):
    cancelled: list[str] = []

    async def start_actor(name: str, *_: object) -> Any:
        if name == "draft server 1":
            raise ConfigError("no such drafter")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    monkeypatch.setattr(draft_pool, "create_draft_server", lambda *_, **__: None)
    monkeypatch.setattr(draft_pool, "start_actor", start_actor)
    files = TlsFiles(Path("ca"), Path("certificate"), Path("key"))
    security = Security(new_token(), files)
    scaling = {"min_servers": 2, "max_servers": 2}
    config = validate(DraftPoolConfig, {"server": SERVER, "scaling": scaling})
    with pytest.raises(ConfigError, match="no such drafter"):
        async with DraftPool(config, security, DraftProxy(security)):
            pass
    assert cancelled == ["draft server 2"]


def connect(path: Path) -> DraftClient:
    settings = Settings(server=f"unix:{path}", deadline_seconds=2.0)
    return DraftClient(
        settings, vocabulary=VOCABULARY, max_model_len=512, max_requests=2, max_draft_tokens=8
    )


def has_drafts(client: DraftClient, steps: int = 20) -> bool:
    """Take steps of a text that repeats itself, as of an engine that takes its time."""
    name = f"r{time.monotonic()}"
    for size in range(20, 20 + steps):
        text = np.array([5 + number % 7 for number in range(size)], np.int32)
        [draft] = client.step([Row(name, text, 4)])
        if draft.token_ids:
            return True
        time.sleep(0.02)
    return False


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.2)


def process_at(address: str) -> int:
    port = int(address.rpartition(":")[2])
    return next(
        one.pid
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
    )


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
async def test_engines_of_a_killed_server_have_drafts_again_from_another(tmp_path):
    path = tmp_path / "s"
    async with pool_of(path, min_servers=2, max_servers=2) as (pool, proxy):
        clients = [connect(path) for _ in range(2)]
        for client in clients:
            await until(lambda client=client: client.wait_until_connected(1.0))
        await until(lambda: [*proxy.num_engines().values()] == [1, 1])
        for client in clients:
            await until(lambda client=client: has_drafts(client))
        os.kill(process_at(pool.addresses[0]), signal.SIGKILL)
        for client in clients:
            await until(lambda client=client: client.is_connected and has_drafts(client))
        await until(lambda: len(pool.addresses) == 2)
        for client in clients:
            client.close()


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
async def test_a_pool_grows_with_what_is_wanted_and_engines_move_to_the_new_server(tmp_path):
    path = tmp_path / "s"
    scaling = {"max_servers": 2, "target_drafting_share": 1e-6, "up_seconds": 0.5}
    async with pool_of(path, **scaling) as (pool, proxy):
        clients = [connect(path) for _ in range(2)]

        def has_grown() -> bool:
            for client in clients:
                has_drafts(client, 3)
            return len(pool.addresses) == 2

        await until(has_grown)
        await until(lambda: [*proxy.num_engines().values()] == [1, 1])
        for client in clients:
            client.close()


def test_the_file_of_the_embedded_pair_s_pool_is_right():
    config = read_pool(Path("deploy/draft_pool.yaml"))
    assert config.scaling.max_servers == 4 and config.server.drafter.kind == "diffuspec"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaling: {}", "server is missing"),
        ("server: {preset: huge}", "preset must be tiny or smollm2, got 'huge'"),
        ("server: {preset: tiny}\nscaling: {min_servers: 3}", "min_servers must be at most"),
        ("server: {preset: tiny}\nreplicas: 2", "unknown key `replicas`"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path, text, message):
    file = tmp_path / "pool.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_pool(file)
