"""The engine: prompts in, answers out, over roles in this process or elsewhere.

    with Engine.from_config(tiny_config()) as engine:
        [answer] = engine.generate(["Once upon a time"])

An engine belongs to one event loop at a time: `generate` runs its own, `stream` and `complete` use
the caller's (then open the engine with `async with`). Connections to remote roles are permanently
bound to one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self

from prometheus_client import generate_latest

from diffuspec.core.beside_loop import call_beside
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import BrokenEngineError
from diffuspec.core.interfaces import (
    Drafter,
    LatticeModel,
    RequestStatus,
    RoleStatus,
    ServiceStatus,
    TargetInfo,
    Verifier,
)
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.drafters import LocalDrafter, Target, load_drafter
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.engine.base import ANOTHER_LOOP, EngineBase
from diffuspec.engine.preflight import check_files
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.telemetry import context
from diffuspec.telemetry.logs import stages
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.bad_words import encode_bad_words
from diffuspec.text.detokenizer import Detokenizer, backend
from diffuspec.text.grammar_queue import GrammarQueue
from diffuspec.text.grammars import grammars_of
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest


class Closable(Protocol):
    """A part that an engine closes together with itself."""

    def close(self) -> None: ...


class Parts(NamedTuple):
    """The parts of an engine that `Engine` owns and closes."""

    verifier: Verifier
    drafters: Mapping[str, Drafter] | None
    tokenizer: Any
    closing: tuple[Closable, ...]


class Engine(EngineBase):
    """A verifier, optionally a drafter, and the coordinator between them."""

    def __init__(
        self,
        config: EngineConfig,
        verifier: Verifier,
        drafter: Drafter | Mapping[str, Drafter] | DrafterPool | None,
        tokenizer: Any,
        closing: Sequence[Closable] = (),
        tracer: Tracer | None = None,
    ) -> None:
        """Take over the parts in `closing`: they are closed with the engine, in reverse order.

        A mapping holds drafters by the names that requests use, the default first.

        The caller closes the tracer.
        """
        super().__init__(config, tokenizer)
        self.verifier = verifier
        self.drafter = _default(drafter)
        self._drafters = drafter
        self._closing = tuple(closing)
        self.tracer = tracer
        self._coordinator: Coordinator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._profile: asyncio.Task[None] | None = None
        self._broken: BrokenEngineError | None = None
        # called with each plan of the scheduler, explained in one line
        self.on_plan: Callable[[str], None] | None = None
        self._grammar_queue = GrammarQueue(
            grammars_of(config.target.path, verifier.info),
            lambda: backend(tokenizer),
            config.coordinator.max_waiting,
        )

    @classmethod
    def from_config(cls, config: EngineConfig, tracer: Tracer | None = None) -> Engine:
        """Load the models of a configuration. Raises ModelLoadError, NgramError, ConfigError."""
        engine = cls.__new__(cls)  # a subclass may be opened by other arguments
        Engine.__init__(engine, config, *load_parts(config), tracer=tracer)
        return engine

    @property
    def info(self) -> TargetInfo:
        return self.verifier.info

    @property
    def lattice_model(self) -> LatticeModel | None:
        """The drafter's diffusion LM, if it runs in this process."""
        drafter = self.drafter
        return drafter.lattice_model if isinstance(drafter, DiffuSpecDrafter) else None

    def _close(self) -> None:
        """Stop the coordinator and the worker threads. Requests still running are cancelled.

        If a part fails to close, the others are still closed; its error is raised at the end.
        """
        self._is_closed = True
        runner, self._runner = self._runner, None
        with contextlib.ExitStack() as stack:
            stack.callback(self._grammar_queue.close)
            for part in reversed(self._closing):
                stack.callback(part.close)
            if runner is not None:
                stack.callback(call_beside, runner.close)
                if self._coordinator is not None and self._loop is runner.get_loop():
                    call_beside(runner.run, self._coordinator.__aexit__(None, None, None))

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse new requests, wait up to `drain_seconds` for running ones, then stop."""
        coordinator = self._coordinator
        if coordinator is not None and self._loop is asyncio.get_running_loop():
            self._grammar_queue.refuse()
            await coordinator.drain(drain_seconds)
            self._coordinator = self._loop = None
            await coordinator.__aexit__(None, None, None)

    def cancel(self, request_id: str) -> bool:
        return self._coordinator is not None and self._coordinator.cancel(request_id) > 0

    @property
    def num_requests(self) -> int:
        return len(self.requests())

    @property
    def is_alive(self) -> bool:
        """Whether its coordinator takes events and has not given up. Any thread may ask."""
        coordinator = self._coordinator
        return coordinator is None or (coordinator.broken is None and coordinator.pulse.is_beating)

    def requests(self) -> tuple[RequestStatus, ...]:
        """Return the state of every request that has not ended. Belongs to the engine's loop."""
        return self._coordinator.requests() if self._coordinator is not None else ()

    async def status(self) -> ServiceStatus:
        """Return the requests. The roles are objects of this process and cannot fail separately."""
        requests = self.requests()
        num_waiting = sum(request.state == "waiting" for request in requests)
        reason = "" if self.is_alive else "the scheduler's loop has stopped"
        return ServiceStatus(
            roles=(RoleStatus("verifier", is_healthy=not reason, reason=reason),),
            num_running=len(requests) - num_waiting,
            num_waiting=num_waiting,
            requests=requests,
        )

    async def series(self) -> str:
        return str(generate_latest(self.metrics.registry).decode())

    @property
    def runners(self) -> list[Any]:
        """The runners of the target and of the default drafter, if it has a model."""
        roles: list[Any] = [self.verifier, self.lattice_model or self.drafter]
        # draft heads have no runner
        return [role.runner for role in roles if hasattr(role, "runner")]

    def reset_prefix_cache(self) -> None:
        """Empty the models' prefix caches. Call it only while no request is running."""
        for runner in self.runners:
            runner.cache.reset()

    async def _stream(
        self,
        token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
        committed: TokenIds,
        num_losses: int,
    ) -> AsyncGenerator[RequestOutput]:
        coordinator = await self._started()
        if sampling.structured_output is not None:
            await self._grammar_queue.compile(sampling.structured_output, context.key_name.get())
        sampling = encode_bad_words(sampling.with_seed(), self.tokenizer)
        text = Detokenizer(
            backend(self.tokenizer),
            sampling.stop,
            sampling.min_tokens,
            includes_stop=sampling.include_stop_str_in_output,
            skips_special=sampling.skip_special_tokens,
            after=int(token_ids[-1]) if len(token_ids) else None,
        )
        chosen = speculation or self.default_speculation
        stream = coordinator.stream(
            token_ids, sampling, chosen, text, request_id, committed, num_losses
        )
        if self.spans is not None:
            stream = self.spans.follow(stream, request_id or "", len(token_ids))
        async with contextlib.aclosing(stream):
            async for output in stream:
                is_last = output.finish_reason is not None
                yield replace(output, seed=sampling.seed) if is_last else output

    def prepare_forms(self) -> None:
        """Prepare the tokenizer for grammars, which blocks the whole process for seconds.

        The helper process that tries new forms starts beside it.
        """
        self._grammar_queue.prepare()

    def start_trials(self) -> None:
        """Start the helper process that tries new forms, in the background."""
        self._grammar_queue.trials.start()

    async def start(self) -> None:
        """Start the coordinator and measure the cost of calls, before the first request.

        The coordinator belongs to the current event loop.
        """
        await self._started()

    async def profile(self) -> None:
        """Measure the cost of calls to drafters that have joined the pool since the start."""
        coordinator = await self._started()
        if seconds := self.config.coordinator.profile_seconds:
            await coordinator.profile(seconds)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def _on_broken(self, error: BrokenEngineError) -> None:
        self._broken = error
        self.on_broken(error)

    async def _started(self) -> Coordinator:
        """Return the running coordinator of this event loop; start it on first use.

        Raises BrokenEngineError once decoding has broken off too often.
        """
        if self._broken is not None:
            raise self._broken
        loop = asyncio.get_running_loop()
        if self._coordinator is None or self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed() and self._loop.is_running():
                raise RuntimeError(ANOTHER_LOOP)
            coordinator = Coordinator(
                self.verifier,
                self._drafters,
                self.config.coordinator,
                self.config.draft_length,
                self.metrics,
                self.tracer,
            )
            coordinator.loop.on_plan = self.on_plan
            coordinator.on_broken = self._on_broken
            self._coordinator, self._loop = await coordinator.__aenter__(), loop
            if seconds := self.config.coordinator.profile_seconds:
                stages.info("measuring what steps cost, in at most %g s", seconds)
                self._profile = loop.create_task(coordinator.profile(seconds))
        if self._profile is not None and not self._profile.done():
            await asyncio.shield(self._profile)  # profiling occupies the verifier's slots
        return self._coordinator


def load_parts(config: EngineConfig) -> Parts:
    """Load the models of one engine. Raises ModelLoadError, NgramError, ConfigError."""
    from diffuspec.models.target import CausalTarget  # imports torch

    check_files(config)
    verifier = CausalTarget.load(config.target)
    info, tokenizer = verifier.info, load_tokenizer(config.target.path, config.target.chat_template)
    if config.drafter is None:
        return Parts(verifier, None, tokenizer, (verifier,))
    drafters: dict[str, LocalDrafter] = {}
    digest = vocabulary_digest(tokenizer, info.vocab_size)
    target = Target(info, digest, config.target.path, verifier)
    for name, section in config.named_drafters.items():
        drafters[name] = load_drafter(section, config.search, target)
    return Parts(verifier, drafters, tokenizer, (verifier, *drafters.values()))


def _default(drafter: Drafter | Mapping[str, Drafter] | DrafterPool | None) -> Drafter | None:
    """Return the drafter of requests that name none; None for a pool."""
    if isinstance(drafter, Mapping):
        return next(iter(drafter.values()))
    return None if isinstance(drafter, DrafterPool) else drafter
