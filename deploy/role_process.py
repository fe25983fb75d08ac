"""One role in this process, without Ray: start it, announce its address, drain it at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from prometheus_client import start_http_server as serve_metrics

from actors.roles.coordinator import CoordinatorActor, verifier_at
from actors.roles.drafter import DrafterActor
from actors.roles.path_scorer import PathScorerActor
from actors.roles.verifier import VerifierRank
from actors.settings import PipelineConfig
from actors.supervision.background import in_background, log_problem
from deploy.addresses import LOOPBACK, Addresses, Role, parse_address
from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.client.roles import RemotePathScorer, RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS
from diffuspec.rpc.services import (
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    PATH_SCORER_SERVICE,
    VERIFIER_SERVICE,
)
from diffuspec.signals import end_event
from diffuspec.text.gguf_directory import model_directory
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

logger = logging.getLogger(__name__)

Announce: TypeAlias = Callable[[str], None]
Remote = TypeVar("Remote", RemoteVerifier, RemotePathScorer)

_CHECK_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 5.0  # pauses between attempts to connect


@dataclass(frozen=True, slots=True)
class Hosted:
    """A role that serves."""

    address: str  # "" for a rank other than 0, which clients do not call
    work: asyncio.Future[None] | None = None  # ends, or raises, when the role has failed


async def serve(
    role: Role, config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> None:
    """Serve a role until SIGTERM or SIGINT, then drain it.

    Waits for the roles that it needs, then calls announce with its address. Raises the error that
    prevents its start, and VerifierUnavailableError when a verifier rank has failed.
    """
    hosts = {
        "drafter": _drafter,
        "path_scorer": _path_scorer,
        "verifier": _verifier,
        "coordinator": _coordinator,
    }
    addresses.check(role, config)
    host = hosts[role](config, token, addresses, announce)
    end = end_event()
    work = asyncio.create_task(_run(host, announce))
    waiting = asyncio.create_task(end.wait())
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, waiting):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def check(role: Role, config: PipelineConfig, token: str, address: str) -> bool:
    """Return whether the role at an address is SERVING. Raises ConfigError."""
    parse_address("--check", address)
    services = {
        "drafter": DRAFTER_SERVICE,
        "path_scorer": PATH_SCORER_SERVICE,
        "verifier": VERIFIER_SERVICE,
        "coordinator": COORDINATOR_SERVICE,
    }
    connection = Connection(address, config.security(token), DEFAULT_LIMITS)
    try:
        return await connection.check_health(services[role], _CHECK_SECONDS)
    finally:
        await connection.close()


async def _run(host: AbstractAsyncContextManager[Hosted], announce: Announce) -> None:
    async with host as hosted:
        if hosted.address:
            announce(hosted.address)
        await (hosted.work or asyncio.Event().wait())


@contextlib.asynccontextmanager
async def _path_scorer(
    config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> AsyncGenerator[Hosted]:
    actor = PathScorerActor(config, token)
    try:
        info = await _target_info(config, token, addresses)
        yield Hosted(await actor.start(info, addresses.host, addresses.port))
    finally:
        await actor.stop()


@contextlib.asynccontextmanager
async def _drafter(
    config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> AsyncGenerator[Hosted]:
    process = addresses.served_drafter(config)
    actor = DrafterActor(config, token, process.drafter)
    try:
        info = await _target_info(config, token, addresses)
        if process.needs_path_scorer:
            await _reach(RemotePathScorer, addresses.path_scorer, config, token)
        vocabulary, scorer = _vocabulary(config, info), addresses.path_scorer
        yield Hosted(await actor.start(info, vocabulary, scorer, addresses.host, addresses.port))
    finally:
        await actor.stop()


@contextlib.asynccontextmanager
async def _verifier(
    config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> AsyncGenerator[Hosted]:
    num_ranks, meeting_point = config.placement.verifier.tensor_parallel, addresses.meeting_point
    actor = VerifierRank(config, token, addresses.rank)
    try:
        if num_ranks > 1 and not addresses.rank:
            meeting_point = await actor.meet()
            announce(f"meeting point {meeting_point}")
        address = await actor.start(meeting_point, addresses.host, addresses.port)
        yield Hosted(address, asyncio.ensure_future(actor.run()))
    finally:
        await actor.stop()


@contextlib.asynccontextmanager
async def _coordinator(
    config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> AsyncGenerator[Hosted]:
    await _target_info(config, token, addresses)  # waits until there is a verifier
    actor = CoordinatorActor(config, token)
    connecting: list[asyncio.Task[None]] = []
    try:
        verifier = verifier_at(addresses.verifier, config, token)
        ready = await actor.start(lambda: verifier, addresses.host, addresses.port)
        if addresses.metrics_port is not None:
            serve_metrics(addresses.metrics_port, LOOPBACK, actor.engine.metrics.registry)
        for name, address in addresses.drafter_roles(config).items():
            connection = _connect_drafter(actor, name, address)
            connecting.append(in_background(connection, f"the connection to {name}"))
        yield Hosted(ready.address)
    finally:
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await actor.drain(config.deadlines.drain_seconds)
        await actor.stop()


async def _connect_drafter(actor: CoordinatorActor, name: str, address: str) -> None:
    """Retry until the drafter answers; a connection that breaks later is renewed by itself."""
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    while True:
        try:
            await actor.connect_drafter(name, address)
            return
        except Exception as error:
            if not isinstance(error, DiffuspecError):
                log_problem(name, error)
            await actor.disconnect_drafter(name, str(error))
        await asyncio.sleep(backoff.failed())


async def _target_info(config: PipelineConfig, token: str, addresses: Addresses) -> TargetInfo:
    """Wait for the verifier and return what it serves. Raises VerifierUnavailableError."""
    verifier = await _reach(RemoteVerifier, addresses.verifier, config, token)
    return verifier.info


async def _reach(kind: type[Remote], address: str, config: PipelineConfig, token: str) -> Remote:
    """Retry until a role answers, and return the closed connection.

    Raises the last error after the configuration's start_seconds.
    """
    security, backoff = config.security(token), Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    ends_at = asyncio.get_running_loop().time() + config.deadlines.start_seconds
    while True:
        try:
            remote = await kind.connect(address, security)
        except WorkerError as error:
            if asyncio.get_running_loop().time() > ends_at:
                raise
            logger.info("waiting for %s: %s", address, error)
            await asyncio.sleep(backoff.failed())
        else:
            await remote.close()
            return remote


def _vocabulary(config: PipelineConfig, info: TargetInfo) -> str | None:
    """Return the digest of the target's vocabulary, None without its tokenizer.json here."""
    path = config.engine.target.path
    if not (model_directory(path) / "tokenizer.json").is_file():
        logger.warning("%s has no tokenizer.json here: vocabularies are not compared", path)
        return None
    return vocabulary_digest(load_tokenizer(path), info.vocab_size)
