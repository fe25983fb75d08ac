"""The coordinator's process: the engine over remote roles, behind gRPC.

It owns the requests and all statistics learnt from them. Drafters connect and disconnect while it
runs; without a drafter it decodes plainly, and its status gives the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from prometheus_client import generate_latest

from actors.roles import self_test
from actors.roles.colocated_verifier import ColocatedVerifier
from actors.roles.drafter_roster import HEALTH_SECONDS, DrafterRoster, role_status
from actors.roles.hosted_drafters import DrafterHost
from actors.roles.served_role import ServedRole
from actors.settings import PipelineConfig
from diffuspec.audit import Auditor
from diffuspec.core.errors import (
    BrokenEngineError,
    DrafterError,
    ShuttingDownError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import ServiceStatus, TargetInfo, Verifier
from diffuspec.core.params import GREEDY, PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput, Verdict, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.server import RoleServer
from diffuspec.telemetry import otel
from diffuspec.telemetry.series import Gauge
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest


class HostedVerifier(Verifier, DrafterHost, Protocol):
    """A verifier that runs in another process, or in this one beside the coordinator."""

    async def check_health(self, timeout: float) -> bool: ...

    @property
    def problem(self) -> str:
        """The known reason why it cannot be called; "" if there is none."""
        ...

    @property
    def num_bytes_sent(self) -> int: ...

    @property
    def num_bytes_received(self) -> int: ...


OpenVerifier: TypeAlias = Callable[[], AbstractAsyncContextManager[HostedVerifier]]


class _ObservedVerifier:
    """A `Verifier` that reports its steps to a StepHealth."""

    def __init__(self, verifier: Verifier, health: StepHealth) -> None:
        self._verifier = verifier
        self._health = health

    @property
    def info(self) -> TargetInfo:
        return self._verifier.info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        with self._health.step():
            return await self._verifier.verify(requests)

    async def release(self, request_id: str) -> None:
        await self._verifier.release(request_id)


@contextlib.asynccontextmanager
async def verifier_at(
    address: str, config: PipelineConfig, security: Security
) -> AsyncGenerator[RemoteVerifier]:
    """Connect to a verifier that runs elsewhere. Raises VerifierUnavailableError."""
    seconds = config.deadlines.verify_seconds
    verifier = await RemoteVerifier.connect(
        address, security, deadline_seconds=seconds, limits=config.limits(seconds)
    )
    try:
        yield verifier
    finally:
        await verifier.close()


@dataclass(frozen=True, slots=True)
class Ready:
    """The address of a running coordinator, and what drafters need to know about the target."""

    address: str
    info: TargetInfo
    vocabulary: str  # a vocabulary digest, see `vocabulary_digest`


class CoordinatorActor(ServedRole):
    """Serves prompts."""

    def __init__(self, config: PipelineConfig, security: Security) -> None:
        super().__init__(security, config.deadlines.silence_seconds)
        self._config = config
        self.drafters = DrafterRoster(config, self._security)
        self._engine: Engine | None = None
        self._server: RoleServer | None = None
        self._is_draining = False
        self._broken = asyncio.Event()
        self._verifier: HostedVerifier | None = None
        self._colocated: ColocatedVerifier | None = None  # the verifier, if it is in this process
        self._health = StepHealth(config.deadlines.verify_seconds)
        self.auditor: Auditor | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "start() comes first"
        return self._engine

    @property
    def verifier(self) -> HostedVerifier:
        """The verifier as opened; the engine's copy also reports its steps."""
        assert self._verifier is not None, "start() comes first"
        return self._verifier

    async def start(self, open_verifier: OpenVerifier, host: str, port: int = 0) -> Ready:
        """Open the verifier, decode a few tokens as a self-test, and serve.

        Drafters connect later; until then the status reports them missing. Raises ConfigError,
        VerifierError, ModelLoadError.
        """
        config = self._config
        # raises on a bad configuration before weights are loaded
        self._security.server_credentials(host)
        otel.check()
        verifier = await self._resources.enter_async_context(open_verifier())
        tokenizer = await asyncio.to_thread(load_tokenizer, config.engine.target.path)
        self._verifier = verifier
        pool = self.drafters.pool if config.engine.drafter is not None else None
        tracer = None if config.trace is None else self._open_trace(config.trace)
        observed = _ObservedVerifier(verifier, self._health)
        self._engine = engine = Engine(config.engine, observed, pool, tokenizer, tracer=tracer)
        self._resources.callback(engine.close)
        engine.on_broken = lambda _: self._broken.set()
        engine.spans = self._resources.enter_context(otel.exporting("diffuspec-coordinator"))
        if config.audit_rate:
            self.auditor = Auditor(engine, config.audit_rate)
        self._resources.push_async_callback(self.drafters.close)
        digest = vocabulary_digest(tokenizer, verifier.info.vocab_size)
        self._colocated = verifier if isinstance(verifier, ColocatedVerifier) else None
        target = None if self._colocated is None else self._colocated.target
        await self.drafters.load(verifier.info, digest, verifier, target)
        engine.start_trials()
        await engine.complete(self_test.prompt(verifier.info), self_test.SAMPLING, PLAIN)
        limits = config.coordinator_limits()
        servicer = CoordinatorServicer(self, engine.default_speculation, self._health)
        self._server = await self._serve(servicer, host, port, limits, self._ask_verifier)
        return Ready(self._server.address, verifier.info, digest)

    async def run(self) -> None:
        """Raise BrokenEngineError once decoding has broken off too often; never return."""
        await self._broken.wait()
        raise BrokenEngineError("decoding broke off too often: this coordinator has ended")

    async def connect_drafter(self, role: str, address: str) -> None:
        """Use a drafter in place of an earlier one of that role. Raises DrafterError."""
        await self.drafters.connect(role, address)

    async def disconnect_drafter(self, role: str, reason: str) -> None:
        """Stop using a drafter; the status gives the reason."""
        await self.drafters.disconnect(role, reason)

    async def test_drafting(self, drafter: str | None = None) -> None:
        """Answer a short prompt with drafts of the named drafter, or of the default one.

        Measures the cost of its calls first. Raises DrafterError if no step had a draft.
        """
        await self.engine.profile()
        prompt = self_test.prompt(self.verifier.info)
        speculation = replace(self_test.SPECULATION, drafter=drafter)
        answer = await self.engine.complete(prompt, self_test.SAMPLING, speculation)
        if not any(step.num_tree_nodes for step in answer.steps):
            causes = sorted({str(step.fallback) for step in answer.steps})
            raise DrafterError(f"a whole answer was decoded plainly: {', '.join(causes)}")

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Return the tokens of each step; see `Frontend.stream`."""
        if self._is_draining and not committed_token_ids:
            raise ShuttingDownError("the coordinator is shutting down; try again later")
        ids = self.engine.encode(prompt)
        stream = self.engine.stream(
            ids, sampling, speculation, request_id, committed_token_ids, num_losses
        )
        if self.auditor is None:
            return stream
        return self.auditor.follow(stream, request_id or "", ids, sampling, committed_token_ids)

    def cancel(self, request_id: str) -> bool:
        """Cancel the requests with an id; return whether there were any."""
        return self.engine.cancel(request_id)

    async def status(self) -> ServiceStatus:
        """Return the state of verifier, drafters and requests."""
        verifier, drafters = await asyncio.gather(
            role_status("verifier", "", self._verifier), self.drafters.status()
        )
        if not verifier.is_healthy and self.verifier.problem:
            verifier = replace(verifier, reason=self.verifier.problem)
        roles = (verifier, *drafters)
        return ServiceStatus(
            roles=roles,
            degraded_reasons=tuple(f"{one.name}: {one.reason}" for one in roles if one.reason),
            num_running=self._gauge("running"),
            num_waiting=self._gauge("waiting"),
            requests=self.engine.requests(),
        )

    async def num_requests(self) -> int:
        """Return how many requests run and wait."""
        return self._gauge("running") + self._gauge("waiting")

    async def metrics(self) -> str:
        """Return the Prometheus series as text."""
        return generate_latest(self.engine.metrics.registry).decode()

    async def link_bytes(self) -> dict[str, tuple[int, int]]:
        """Return the bytes sent to and received from each role so far."""
        roles = {"verifier": self._verifier, **self.drafters.remotes}
        return {
            f"coordinator - {name}": (role.num_bytes_sent, role.num_bytes_received)
            for name, role in roles.items()
            if role is not None
        }

    async def is_healthy(self) -> bool:
        """Return whether the event loop is alive and the scheduler's loop takes events.

        Draining and waiting requests do not matter, nor does a verifier in another process. May be
        called from the event loop of any thread.
        """
        if self._colocated is not None and not self._colocated.is_well:
            return False
        return self._heartbeat.is_alive and (self._engine is None or self._engine.is_alive)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; return when the running ones have finished or `seconds` are over.

        Requests that have not finished by then are cancelled. The service keeps answering until
        stop().
        """
        self._is_draining = True
        if self._server is not None:
            self._server.announce_end()
        if self.auditor is not None:
            await self.auditor.close()
        if self._engine is not None:
            await self._engine.stop(seconds)

    async def stop(self) -> None:
        """Cancel running requests and shut everything down."""
        await self.drain(0.0)
        await super().stop()

    def _open_trace(self, path: Path) -> Tracer:
        tracer = Tracer(path)
        self._resources.callback(tracer.close)
        return tracer

    async def _ask_verifier(self) -> None:
        """Check the verifier's health. Raises VerifierUnavailableError when it is not serving."""
        if not await self.verifier.check_health(HEALTH_SECONDS):
            raise VerifierUnavailableError("the verifier is not serving")

    def _gauge(self, name: str) -> int:
        gauge: Gauge = getattr(self.engine.metrics, name)
        return int(gauge.read())
