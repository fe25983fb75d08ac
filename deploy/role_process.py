"""One role in this process, without Ray: starts it, announces its address, drains it at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from prometheus_client import start_http_server as serve_metrics

from actors.roles.colocated_verifier import colocated_verifier
from actors.roles.coordinator import CoordinatorActor, HostedVerifier, verifier_at
from actors.roles.drafter import DrafterActor
from actors.roles.path_scorer import PathScorerActor
from actors.roles.verifier import VerifierRank
from actors.settings import PipelineConfig
from actors.supervision.background import in_background, log_problem
from deploy.addresses import Addresses, Role
from diffuspec.cli.signals import end_event
from diffuspec.core.addresses import LOOPBACK, parse_address
from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.client.roles import RemotePathScorer, RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS
from diffuspec.rpc.security import Security
from diffuspec.rpc.services import (
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    PATH_SCORER_SERVICE,
    VERIFIER_SERVICE,
)
from diffuspec.text.gguf_directory import model_directory
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

logger = logging.getLogger(__name__)

Announce: TypeAlias = Callable[[str], None]
Remote = TypeVar("Remote", RemoteVerifier, RemotePathScorer)

_CHECK_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 5.0  # pauses between attempts to connect


@dataclass(frozen=True, slots=True)
class Hosted:
    """A role that is serving."""

    address: str  # "" for ranks other than 0, which clients do not call
    work: asyncio.Future[None] | None = None  # ends, or raises, when the role has failed


async def serve(
    role: Role, config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> None:
    """Serve a role until SIGTERM or SIGINT, then drain it.

    Waits for the roles that it needs, then calls `announce` with its address. Raises the error that
    prevents its start, and VerifierUnavailableError if a verifier rank fails or decoding breaks off
    three times within a minute.
    """
    addresses.check(role, config)
    end = end_event()
    work = asyncio.create_task(_run(role, config, token, addresses, announce))
    waiting = asyncio.create_task(end.wait())
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, waiting):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def check(role: Role, config: PipelineConfig, token: str, address: str) -> bool:
    """Return whether the role at an address reports SERVING. Raises ConfigError."""
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


async def _run(
    role: Role, config: PipelineConfig, token: str, addresses: Addresses, announce: Announce
) -> None:
    async with contextlib.AsyncExitStack() as resources:
        host = _Host(config, config.security(token), addresses, announce, resources)
        hosted: Hosted = await getattr(host, role)()
        if hosted.address:
            announce(hosted.address)
        await (hosted.work or asyncio.Event().wait())


@dataclass(frozen=True, slots=True)
class _Host:
    """Starts roles, each with the method of its name; they end with the resources."""

    config: PipelineConfig
    security: Security
    addresses: Addresses
    announce: Announce
    resources: contextlib.AsyncExitStack

    async def path_scorer(self) -> Hosted:
        actor = PathScorerActor(self.config, self.security)
        self.resources.push_async_callback(actor.stop)
        info = await self._target_info()
        return Hosted(await actor.start(info, self.addresses.host, self.addresses.port))

    async def drafter(self) -> Hosted:
        config, at = self.config, self.addresses
        process = at.served_drafter(config)
        actor = DrafterActor(config, self.security, process.drafter)
        self.resources.push_async_callback(actor.stop)
        info = await self._target_info()
        if process.needs_path_scorer:
            await self._reach(RemotePathScorer, at.path_scorer)
        vocabulary = _vocabulary(config, info)
        return Hosted(await actor.start(info, vocabulary, at.path_scorer, at.host, at.port))

    async def verifier(self) -> Hosted:
        config, at = self.config, self.addresses
        meeting_point = at.meeting_point
        actor = VerifierRank(config, self.security, at.rank)
        self.resources.push_async_callback(actor.stop)
        if config.placement.verifier.tensor_parallel > 1 and not at.rank:
            meeting_point = await actor.meet()
            self.announce(f"meeting point {meeting_point}")
        address = await actor.start(meeting_point, at.host, at.port)
        return Hosted(address, asyncio.ensure_future(actor.run()))

    async def coordinator(self) -> Hosted:
        config, at = self.config, self.addresses
        verifier: AbstractAsyncContextManager[HostedVerifier]
        if config.placement.together:
            verifier = colocated_verifier(config)
        else:
            await self._target_info()  # waits until there is a verifier
            verifier = verifier_at(at.verifier, config, self.security)
        actor = CoordinatorActor(config, self.security)
        self.resources.push_async_callback(actor.stop)
        self.resources.push_async_callback(actor.drain, config.deadlines.drain_seconds)
        ready = await actor.start(lambda: verifier, at.host, at.port)
        if at.metrics_port is not None:
            serve_metrics(at.metrics_port, LOOPBACK, actor.engine.metrics.registry)
        for name, address in at.drafter_roles(config).items():
            connection = _connect_drafter(actor, name, address)
            task = in_background(connection, f"the connection to {name}")
            self.resources.push_async_callback(_end, task)
        return Hosted(ready.address, asyncio.ensure_future(actor.run()))

    async def _target_info(self) -> TargetInfo:
        """Wait for the verifier and return its target's facts. Raises VerifierUnavailableError."""
        verifier = await self._reach(RemoteVerifier, self.addresses.verifier)
        return verifier.info

    async def _reach(self, kind: type[Remote], address: str) -> Remote:
        """Retry until a role answers, and return the closed connection.

        Raises the last error after the configuration's start_seconds.
        """
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        ends_at = asyncio.get_running_loop().time() + self.config.deadlines.start_seconds
        while True:
            try:
                remote = await kind.connect(address, self.security)
            except WorkerError as error:
                if asyncio.get_running_loop().time() > ends_at:
                    raise
                logger.info("waiting for %s: %s", address, error)
                await asyncio.sleep(backoff.failed())
            else:
                await remote.close()
                return remote


async def _connect_drafter(actor: CoordinatorActor, name: str, address: str) -> None:
    """Retry until the drafter answers; later, a broken connection is renewed automatically."""
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


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _vocabulary(config: PipelineConfig, info: TargetInfo) -> str | None:
    """Return the digest of the target's vocabulary; None if its tokenizer.json is not here."""
    path = config.engine.target.path
    if not (model_directory(path) / "tokenizer.json").is_file():
        logger.warning("%s has no tokenizer.json here: vocabularies are not compared", path)
        return None
    return vocabulary_digest(load_tokenizer(path), info.vocab_size)
