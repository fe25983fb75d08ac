"""Text in and text out, over a verifier and a drafter: of this process, or of others.

    with Engine.from_config(tiny_config()) as engine:
        [answer] = engine.generate(["Once upon a time"])

An engine belongs to one event loop at a time: `generate` uses one of its own, `stream` and
`complete` the caller's (then with `async with`). Over remote roles there is only one loop ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter, LatticeModel, RequestStatus, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import (
    NO_TOKENS,
    FinishReason,
    Prompt,
    RequestOutput,
    StepStats,
    TokenIds,
    TokenLogprobs,
)
from diffuspec.drafters import Target, load_drafter
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.telemetry.metrics import Metrics, RequestStats, summarize
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.detokenizer import Detokenizer, backend
from diffuspec.text.prompt import as_token_ids, encode_prompt, is_list_of_prompts
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

_GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer. The text excludes EOS and what a stop string cut off."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None
    num_prompt_tokens: int
    steps: tuple[StepStats, ...]
    seed: int | None = None  # that it was drawn with: with it the same answer comes again

    @property
    def stats(self) -> RequestStats:
        return summarize(self.steps, self.num_prompt_tokens)


class Closable(Protocol):
    """What an engine closes with itself."""

    def close(self) -> None: ...


class Engine:
    """A verifier, perhaps a drafter, and the loop between them."""

    def __init__(
        self,
        config: EngineConfig,
        verifier: Verifier,
        drafter: Drafter | DrafterPool | None,
        tokenizer: Any,
        closing: Sequence[Closable] = (),
        tracer: Tracer | None = None,
    ) -> None:
        """closing: what belongs to this engine alone, to be closed with it, in this order.

        A tracer is written to; it stays its maker's to close.
        """
        self.config = config
        self.verifier = verifier
        self.drafter = None if isinstance(drafter, DrafterPool) else drafter  # if there is just one
        self._drafters = drafter
        self.tokenizer = tokenizer
        self.metrics = Metrics()
        self.default_speculation = config.speculation
        self._closing = tuple(closing)
        self.tracer = tracer
        self._coordinator: Coordinator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Runner | None = None  # of generate
        self._turns = threading.Lock()  # of those who call it

    @classmethod
    def from_config(cls, config: EngineConfig, tracer: Tracer | None = None) -> Engine:
        """Load what the configuration names. Raises ModelLoadError, NgramError, ConfigError."""
        from diffuspec.models.target import CausalTarget  # torch: not where roles are remote

        verifier = CausalTarget.load(config.target)
        info, tokenizer = verifier.info, load_tokenizer(config.target.path)
        if config.drafter is None:
            return cls(config, verifier, None, tokenizer, (verifier,), tracer)
        target = Target(info, vocabulary_digest(tokenizer, info.vocab_size))
        drafter = load_drafter(config.drafter, config.search, target)
        return cls(config, verifier, drafter, tokenizer, (verifier, drafter), tracer)

    @property
    def lattice_model(self) -> LatticeModel | None:
        """The diffusion LM, where the drafter is made of one in this process."""
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
        """Stop the loop and the worker threads. Requests still running are cancelled.

        Everything is closed even if some of it fails; what it failed with is raised then.
        """
        runner, self._runner = self._runner, None
        with contextlib.ExitStack() as stack:
            for part in reversed(self._closing):
                stack.callback(part.close)
            if runner is not None:
                stack.callback(runner.close)
                if self._coordinator is not None and self._loop is runner.get_loop():
                    runner.run(self._coordinator.__aexit__(None, None, None))

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse new requests, give the running ones so long, then end the loop in this event loop.

        What is still running then is cancelled. The engine can be used again afterwards.
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
    ) -> list[Completion]:
        """Answer all prompts, decoding them together; not to be called from a coroutine.

        Calls from several threads wait for each other: `stream` is for requests that come and go.
        """
        if not is_list_of_prompts(prompts):
            raise InvalidRequestError("prompts must be a list of prompts: put a single one in [ ]")
        with self._turns:
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(self._complete_all(prompts, sampling, speculation))

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
        return _collect([increment async for increment in stream], len(token_ids))

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = _GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        committed_token_ids: Sequence[int] = (),
    ) -> AsyncGenerator[RequestOutput]:
        """Yield what every step adds, after `committed_token_ids`; see `Frontend.stream`."""
        committed = as_token_ids(committed_token_ids)
        if len(committed) and sampling.lacks_seed:
            raise InvalidRequestError("to go on with a sampled answer needs the seed of its start")
        stream = self._stream(self.encode(prompt), sampling, speculation, request_id, committed)
        async with contextlib.aclosing(stream):
            async for increment in stream:
                yield increment

    def cancel(self, request_id: str) -> bool:
        """End what runs under an id, with RequestCancelledError; return whether anything did.

        To be called in the event loop that the engine is used in.
        """
        return self._coordinator is not None and self._coordinator.cancel(request_id) > 0

    def requests(self) -> tuple[RequestStatus, ...]:
        """Return the state of every request that has not ended. Belongs to the engine's loop."""
        return self._coordinator.requests() if self._coordinator is not None else ()

    def encode(self, prompt: Prompt) -> TokenIds:
        """Return token ids of a text, of chat messages by the target's template, or of ids.

        Raises InvalidRequestError, before tokenising what cannot fit.
        """
        return encode_prompt(prompt, self.tokenizer, self.verifier.info.max_model_len)

    async def _complete_all(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
    ) -> list[Completion]:
        num_sequences = self.verifier.info.max_sequences
        admitted = asyncio.Semaphore(num_sequences + self.config.coordinator.max_waiting)

        async def one(prompt: Prompt) -> Completion:
            async with admitted:
                return await self.complete(prompt, sampling, speculation)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt)) for prompt in prompts]
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
        sampling = sampling.with_seed()
        text = Detokenizer(backend(self.tokenizer), sampling.stop)
        chosen = speculation or self.default_speculation
        stream = coordinator.stream(token_ids, sampling, chosen, text, request_id, committed)
        async with contextlib.aclosing(stream):
            async for increment in stream:
                is_last = increment.finish_reason is not None
                yield replace(increment, seed=sampling.seed) if is_last else increment

    async def _started(self) -> Coordinator:
        """Return the coordinator of this event loop, started."""
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


def _collect(increments: Sequence[RequestOutput], num_prompt_tokens: int) -> Completion:
    last = increments[-1]
    assert last.finish_reason is not None
    logprobs = None
    if last.logprobs is not None:
        logprobs = tuple(one for increment in increments for one in increment.logprobs or ())
    return Completion(
        token_ids=tuple(i for increment in increments for i in increment.token_ids),
        text="".join(increment.text for increment in increments),
        finish_reason=last.finish_reason,
        logprobs=logprobs,
        num_prompt_tokens=num_prompt_tokens,
        steps=tuple(increment.step for increment in increments),
        seed=last.seed,
    )
