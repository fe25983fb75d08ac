"""The application on uvicorn, over an engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from diffuspec.audit import Auditor
from diffuspec.core import addresses
from diffuspec.core.errors import BrokenEngineError
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.engine.base import EngineBase
from diffuspec.pairs.tiny import TARGET
from diffuspec.serve.app import create_app
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.connections import Connections
from diffuspec.serve.conventions import read_conventions
from diffuspec.serve.protocol import BoundedProtocol
from diffuspec.serve.settings import ServeSettings
from diffuspec.telemetry import otel

logger = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_POLL_SECONDS = 0.1  # uvicorn's own interval for checking for a second Ctrl-C
_GRACE_SECONDS = 5  # seconds after the drain in which the last errors are sent


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket: connections wait until they are served. Raises ConfigError."""
    return addresses.bind(host, port, _BACKLOG)  # no other process can bind the address now


def is_loopback(bound: socket.socket) -> bool:
    """Return whether only programs on this machine can connect."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files."""

    certificate: Path
    key: Path


class Server(uvicorn.Server):
    """Serves an application until SIGINT or SIGTERM, then closes its socket and drains.

    A second SIGINT ends it at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        settings: ServeSettings,
        drain: Callable[[], Awaitable[None]],
        on_ready: Callable[[str], None],
        tls: Tls | None = None,
    ) -> None:
        """`drain` refuses new requests and ends the others in `drain_seconds`.

        `on_ready` is called with the URL.
        """
        addresses = Connections(settings.max_connections_per_address)
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                http=functools.partial(BoundedProtocol, settings, addresses),  # type: ignore[arg-type]
                ws="none",
                server_header=False,
                log_config=None,
                lifespan="off",
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=round(settings.drain_seconds) + _GRACE_SECONDS,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None else tls.key,
            )
        )
        self._bound = bound
        self._drain = drain
        self._on_ready = on_ready

    @property
    def url(self) -> str:
        """The URL at which this machine reaches it."""
        host, port, *_ = self._bound.getsockname()
        if ipaddress.ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        return f"http{'s' if self.config.is_ssl else ''}://{host}:{port}"

    async def run_until_stopped(self) -> None:
        """Serve; return after a signal, once the running requests have ended."""
        await self.serve([self._bound])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.ensure_future(self._drain())
        await super().shutdown(sockets)
        while not (draining.done() or self.force_exit):
            await asyncio.wait([draining], timeout=_POLL_SECONDS)
        if self.force_exit:
            draining.cancel()
        await asyncio.wait([draining])
        if not draining.cancelled():
            draining.result()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals stop the server, without raising them again afterwards."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def name_of(target: Path) -> str:
    """Return the client-visible name of a model in a directory, unless another name is given."""
    return "diffuspec-tiny" if target == TARGET else target.resolve().name


class EngineBackend:
    """A `Backend` over an engine. The caller closes the engine."""

    def __init__(
        self, engine: EngineBase, name: str, settings: ServeSettings | None = None
    ) -> None:
        """`name`: the model's name for clients. Raises ConfigError and ModelLoadError."""
        info, settings = engine.info, settings or ServeSettings()
        audit_rate = settings.audit_rate
        self.model = ServedModel(
            name,
            int(time.time()),
            info.max_model_len,
            info.vocab_size,
            engine.default_speculation,
            read_conventions(engine.config.target.path, engine.tokenizer, settings),
        )
        self._engine = engine
        self.auditor = Auditor(engine, audit_rate) if audit_rate else None

    @property
    def tokenizer(self) -> Any:
        return self._engine.tokenizer

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """See `Backend.stream`."""
        stream = self._engine.stream(prompt_token_ids, sampling, speculation, request_id)
        if self.auditor is None:
            return stream
        return self.auditor.follow(stream, request_id, prompt_token_ids, sampling)

    async def status(self) -> ServiceStatus:
        return await self._engine.status()

    @property
    def is_alive(self) -> bool:
        return self._engine.is_alive

    async def metrics(self) -> str:
        """Return the Prometheus series as text."""
        return await self._engine.series()


async def serve_engine(
    engine: EngineBase,
    name: str,
    settings: ServeSettings,
    bound: socket.socket,
    on_ready: Callable[[str], None],
    tls: Tls | None = None,
) -> None:
    """Serve an engine as the model `name` until a signal arrives; then close the engine.

    Raises BrokenEngineError if decoding has broken off too often for the engine to go on.
    """
    with otel.exporting("diffuspec") as spans:
        async with engine:
            engine.spans = spans
            await asyncio.to_thread(engine.prepare_forms)
            backend = EngineBackend(engine, name, settings)
            logger.info("%s: %s", name, backend.model.conventions)
            app = create_app(backend, settings, spans=spans)

            async def drain() -> None:
                if backend.auditor is not None:
                    await backend.auditor.close()
                await engine.stop(settings.drain_seconds)

            server = Server(app, bound, settings, drain, on_ready, tls)
            broken: list[BrokenEngineError] = []

            def end(error: BrokenEngineError) -> None:
                broken.append(error)
                server.should_exit = True

            engine.on_broken = end
            await server.run_until_stopped()
    if broken:
        raise broken[0]
