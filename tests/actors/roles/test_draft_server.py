"""A draft server as an actor of Ray, as a plain object: its life, and what it refuses."""

import pytest

from actors.placement import LOOPBACK
from actors.roles.draft_server import DraftServerActor
from diffuspec.core.errors import ConfigError, WorkerError
from diffuspec.core.validation import validate
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.pairs.tiny import TARGET
from diffuspec.rpc.security import Security, new_token

CONFIG = validate(
    DraftServerConfig, {"drafter": {"kind": "pld"}, "tokenizer": TARGET, "profile_seconds": 0}
)


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
