"""The engine: prompts in, answers out, over roles in this process or elsewhere.

    with Engine.from_config(tiny_config()) as engine:
        [answer] = engine.generate(["Once upon a time"])

An engine belongs to one event loop at a time: `generate` runs one of its own, `stream` and
`complete` use the caller's (then open the engine with `async with`). Connections to remote roles
are bound to one loop for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import uvloop

from diffuspec.completion import Completion
from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter, LatticeModel, RequestStatus, Verifier
from diffuspec.core.params import MAX_CHOICES, SamplingParams, SpeculationParams
from diffuspec.core.types import NO_TOKENS, Prompt, RequestOutput, TokenIds
from diffuspec.drafters import LocalDrafter, Target, load_drafter
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.telemetry.metrics import Metrics
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.bad_words import encode_bad_words
from diffuspec.text.detokenizer import Detokenizer, backend
from diffuspec.text.grammar_queue import GrammarQueue
from diffuspec.text.grammars import grammars_of
from diffuspec.text.prompt import as_token_ids, encode_prompt, is_list_of_prompts
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

if TYPE_CHECKING:
    from diffuspec.telemetry.request_spans import RequestSpans

_GREEDY = SamplingParams()


class Closable(Protocol):
    """A part that an engine closes with itself."""

    def close(self) -> None: ...


class Engine:
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
        """Take over the parts in `closing`: they are closed with the engine, in this order.

        A mapping holds drafters by the names that requests choose, the default first.

        The tracer is written to and not closed.
        """
        self.config = config
        self.verifier = verifier
        self.drafter = _default(drafter)
        self._drafters = drafter
        self.tokenizer = tokenizer
        self.metrics = Metrics()
        self.default_speculation = config.speculation
        self._closing = tuple(closing)
        self.tracer = tracer
        self.spans: RequestSpans | None = None  # records OpenTelemetry's, if set
        self._coordinator: Coordinator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Runner | None = None  # of generate
        self._grammar_queue = GrammarQueue(config.coordinator.max_waiting)
        self._turns = threading.Lock()  # one call of generate at a time

    @classmethod
    def from_config(cls, config: EngineConfig, tracer: Tracer | None = None) -> Engine:
        """Load the models of a configuration. Raises ModelLoadError, NgramError, ConfigError."""
        from diffuspec.models.target import CausalTarget  # torch: not where roles are remote

        verifier = CausalTarget.load(config.target)
        info, tokenizer = verifier.info, load_tokenizer(config.target.path)
        if config.drafter is None:
            return cls(config, verifier, None, tokenizer, (verifier,), tracer)
        drafters: dict[str, LocalDrafter] = {}
        digest = vocabulary_digest(tokenizer, info.vocab_size)
        target = Target(info, digest, config.target.path, verifier)
        for name, section in config.named_drafters.items():
            drafters[name] = load_drafter(section, config.search, target)
        closing: list[Closable] = [verifier, *drafters.values()]
        return cls(config, verifier, drafters, tokenizer, closing, tracer)

    @property
    def lattice_model(self) -> LatticeModel | None:
        """The drafter's diffusion LM, if it runs in this process."""
        drafter = self.drafter
        return drafter.lattice_model if isinstance(drafter, DiffuSpecDrafter) else None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
        finally:
            await asyncio.to_thread(self.close)  # it waits for what the workers are doing

    def close(self) -> None:
        """Stop the coordinator and the worker threads. Requests still running are cancelled.

        A part that fails to close does not keep the others open; its error is raised at the end.
        """
        runner, self._runner = self._runner, None
        with contextlib.ExitStack() as stack:
            stack.callback(self._grammar_queue.close)
            for part in reversed(self._closing):
                stack.callback(part.close)
            if runner is not None:
                stack.callback(runner.close)
                if self._coordinator is not None and self._loop is runner.get_loop():
                    runner.run(self._coordinator.__aexit__(None, None, None))

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse new requests, wait up to `drain_seconds` for the others, end the coordinator.

        Requests still running then are cancelled. The engine can be used again afterwards.
        """
        coordinator = self._coordinator
        if coordinator is not None and self._loop is asyncio.get_running_loop():
            await coordinator.drain(drain_seconds)
            self._coordinator = self._loop = None
            await coordinator.__aexit__(None, None, None)

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams = _GREEDY,
        speculation: SpeculationParams | None = None,
        n: int = 1,
    ) -> list[Completion]:
        """Answer all prompts, decoding them together. Not to be called from a coroutine.

        Each prompt gets n answers, which follow each other in the list; their seeds are those of
        `SamplingParams.choice`. Calls from several threads take turns; use `stream` for requests
        that come and go.
        """
        if not 1 <= n <= MAX_CHOICES:
            raise InvalidRequestError(f"n must be from 1 to {MAX_CHOICES}, got {n}")
        if not is_list_of_prompts(prompts):
            raise InvalidRequestError("prompts must be a list of prompts: put a single one in [ ]")
        with self._turns:
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
            return self._runner.run(self._complete_all(prompts, sampling, speculation, n))

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams = _GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
    ) -> Completion:
        """Answer one prompt."""
        token_ids = self.encode(prompt)
        stream = self._stream(token_ids, sampling, speculation, request_id)
        return Completion.of([output async for output in stream], len(token_ids))

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = _GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        committed_token_ids: Sequence[int] = (),
    ) -> AsyncGenerator[RequestOutput]:
        """Yield one output per step, after `committed_token_ids`; see `Frontend.stream`."""
        committed = as_token_ids(committed_token_ids)
        if len(committed) and sampling.lacks_seed:
            raise InvalidRequestError("seed must be given to resume a sampled answer")
        stream = self._stream(self.encode(prompt), sampling, speculation, request_id, committed)
        async with contextlib.aclosing(stream):
            async for output in stream:
                yield output

    def cancel(self, request_id: str) -> bool:
        """Cancel all requests under an id; return whether there were any.

        Their streams raise RequestCancelledError. Call it in the engine's event loop.
        """
        return self._coordinator is not None and self._coordinator.cancel(request_id) > 0

    def requests(self) -> tuple[RequestStatus, ...]:
        """Return the state of every request that has not ended. Belongs to the engine's loop."""
        return self._coordinator.requests() if self._coordinator is not None else ()

    def encode(self, prompt: Prompt) -> TokenIds:
        """Return the token ids of a text, of chat messages by the target's template, or of ids.

        Raises InvalidRequestError; a text that cannot fit is refused before it is tokenised.
        """
        return encode_prompt(prompt, self.tokenizer, self.verifier.info.max_model_len)

    async def _complete_all(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        n: int,
    ) -> list[Completion]:
        num_sequences = self.verifier.info.max_sequences
        admitted = asyncio.Semaphore(num_sequences + self.config.coordinator.max_waiting)

        async def one(prompt: Prompt, how: SamplingParams) -> Completion:
            async with admitted:
                return await self.complete(prompt, how, speculation)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(one(prompt, base.choice(index)))
                    for prompt in prompts
                    for base in [sampling.with_seed()]
                    for index in range(n)
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _stream(
        self,
        token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
        committed: TokenIds = NO_TOKENS,
    ) -> AsyncGenerator[RequestOutput]:
        coordinator = await self._started()
        if sampling.structured_output is not None:
            grammars = grammars_of(self.config.target.path, self.verifier.info)
            await self._grammar_queue.compile(grammars, sampling.structured_output)
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
        stream = coordinator.stream(token_ids, sampling, chosen, text, request_id, committed)
        if self.spans is not None:
            stream = self.spans.follow(stream, request_id or "", len(token_ids))
        async with contextlib.aclosing(stream):
            async for output in stream:
                is_last = output.finish_reason is not None
                yield replace(output, seed=sampling.seed) if is_last else output

    async def _started(self) -> Coordinator:
        """Return the running coordinator of this event loop; start it on first use."""
        loop = asyncio.get_running_loop()
        if self._coordinator is not None and self._loop is loop:
            return self._coordinator
        if self._loop is not None and not self._loop.is_closed() and self._loop.is_running():
            raise RuntimeError("this engine is in use in another event loop")
        coordinator = Coordinator(
            self.verifier,
            self._drafters,
            self.config.coordinator,
            self.config.draft_length,
            self.metrics,
            self.tracer,
        )
        self._coordinator, self._loop = await coordinator.__aenter__(), loop
        return self._coordinator


def _default(drafter: Drafter | Mapping[str, Drafter] | DrafterPool | None) -> Drafter | None:
    """Return the drafter of requests that choose none; None for a pool."""
    if isinstance(drafter, Mapping):
        return next(iter(drafter.values()))
    return None if isinstance(drafter, DrafterPool) else drafter
