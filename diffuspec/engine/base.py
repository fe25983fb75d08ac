"""The interface of an engine to its callers."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from diffuspec.core.beside_loop import is_in_loop, run_beside
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import BrokenEngineError, InvalidRequestError
from diffuspec.core.interfaces import ServiceStatus, TargetInfo
from diffuspec.core.params import GREEDY, MAX_CHOICES, SamplingParams, SpeculationParams
from diffuspec.core.token_ids import as_token_ids
from diffuspec.core.types import NO_TOKENS, Prompt, RequestOutput, TokenIds
from diffuspec.engine.completion import Completion
from diffuspec.telemetry.metrics import Metrics
from diffuspec.text.prompt import encode_prompt, list_of_prompts

if TYPE_CHECKING:
    from diffuspec.telemetry.request_spans import RequestSpans

ANOTHER_LOOP = (
    "this engine is in use in another event loop: there `await engine.complete(prompt)`, not "
    "`engine.generate`"
)

T = TypeVar("T")


class EngineBase(ABC):
    """Prompts in, answers out; everything goes through `_stream`."""

    def __init__(self, config: EngineConfig, tokenizer: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.metrics = Metrics()
        self.default_speculation = config.speculation
        # called once, when decoding has broken off so often that the engine can no longer be used
        self.on_broken: Callable[[BrokenEngineError], None] = lambda _: None
        self.spans: RequestSpans | None = None  # records OpenTelemetry spans, if set
        self._runner: asyncio.Runner | None = None  # the event loop of generate
        self._is_closed = False
        self._process_id = os.getpid()
        self._turns = threading.Lock()  # one call of generate at a time

    @property
    @abstractmethod
    def info(self) -> TargetInfo:
        """Facts about the target."""

    @property
    def is_alive(self) -> bool:
        """Whether requests make progress, or may make progress later; False: start it again."""
        return True

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """Number of requests that have not ended."""

    @abstractmethod
    def _stream(
        self,
        token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
        committed: TokenIds,
        num_losses: int,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield one output per step; see `stream`."""

    @abstractmethod
    def cancel(self, request_id: str) -> bool:
        """Cancel all requests with an id; return whether there were any.

        Their streams raise RequestCancelledError. Call it in the engine's event loop.
        """

    @abstractmethod
    async def status(self) -> ServiceStatus:
        """Return the state of roles and requests, within a second or two."""

    @abstractmethod
    async def series(self) -> str:
        """Return the Prometheus series as text."""

    @abstractmethod
    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse new requests, wait up to `drain_seconds` for running ones, and cancel the rest.

        The engine can be used again afterwards.
        """

    @abstractmethod
    def prepare_forms(self) -> None:
        """Prepare for structured output, so that no request has to wait for it."""

    @abstractmethod
    def _close(self) -> None:
        """See `close`."""

    def close(self) -> None:
        """Free what the engine holds. Requests still running are cancelled.

        In a process that was forked from the engine's this does nothing.
        """
        if os.getpid() == self._process_id:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
        finally:
            await asyncio.to_thread(self.close)  # closing waits for the workers' current calls

    def generate(
        self,
        prompts: Iterable[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] = GREEDY,
        speculation: SpeculationParams | None = None,
        n: int = 1,
    ) -> list[Completion]:
        """Answer all prompts, decoding them together.

        `sampling` is the same for all prompts, or a sequence with one for each. Each prompt gets n
        consecutive answers in the list, with the seeds of `SamplingParams.choice`. Calls from
        several threads take turns; use `stream` for requests that come and go. If an event loop is
        running, as in a notebook, this call blocks it; `complete` and `stream` do not.
        """
        self._check_is_open()
        if not 1 <= n <= MAX_CHOICES:
            raise InvalidRequestError(f"n must be from 1 to {MAX_CHOICES}, got {n}")
        listed = list_of_prompts(prompts)
        return self._run(self._complete_all(listed, _for_each(listed, sampling), speculation, n))

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams | None = None,
    ) -> Completion:
        """Answer a chat: messages with `role` and `content`, formatted by the target's template.

        Several chats are prompts of `generate`, which decodes them together.
        """
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise InvalidRequestError(
                'messages must be a list such as [{"role": "user", "content": "Hello"}], got '
                f"{type(messages).__name__}"
            )
        if not messages or not all(isinstance(message, Mapping) for message in messages):
            raise InvalidRequestError(
                "messages must be those of one chat, each with role and content; several chats are "
                "answered by generate([chat, chat])"
            )
        [answer] = self.generate([messages], sampling, speculation)
        return answer

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
    ) -> Completion:
        """Answer one prompt."""
        self._check_is_open()
        token_ids = self.encode(prompt)
        stream = self._stream(token_ids, sampling, speculation, request_id, NO_TOKENS, 0)
        return Completion.of([output async for output in stream], len(token_ids))

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Return one output per step, after `committed_token_ids`; see `Frontend.stream`."""
        self._check_is_open()
        committed = as_token_ids(committed_token_ids)
        if len(committed) and sampling.lacks_seed:
            raise InvalidRequestError("seed must be given to resume a sampled answer")
        token_ids = self.encode(prompt)
        return self._stream(token_ids, sampling, speculation, request_id, committed, num_losses)

    def encode(self, prompt: Prompt) -> TokenIds:
        """Return the token ids of a text, of chat messages in the target's template, or of ids.

        Raises InvalidRequestError; a text that cannot fit is refused before it is tokenised.
        """
        return encode_prompt(prompt, self.tokenizer, self.info.max_model_len)

    def _check_is_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this engine is closed: open another one")
        if (process_id := os.getpid()) != self._process_id:
            raise RuntimeError(
                f"this engine was opened in process {self._process_id}, whose threads a process "
                f"forked from it ({process_id}) does not have: open another one here, or start "
                "processes by spawn"
            )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of `generate`."""
        with self._turns:
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
            return run_beside(self._runner, work) if is_in_loop() else self._runner.run(work)

    async def _complete_all(
        self,
        prompts: Sequence[Prompt],
        sampling: Sequence[SamplingParams],
        speculation: SpeculationParams | None,
        n: int,
    ) -> list[Completion]:
        most = self.info.max_sequences + self.config.coordinator.max_waiting
        admitted = asyncio.Semaphore(most)

        async def one(prompt: Prompt, how: SamplingParams) -> Completion:
            async with admitted:
                return await self.complete(prompt, how, speculation)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(one(prompt, base.choice(index)))
                    for prompt, given in zip(prompts, sampling, strict=True)
                    for base in [given.with_seed()]
                    for index in range(n)
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]


def _for_each(
    prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams]
) -> Sequence[SamplingParams]:
    """Return the parameters of each prompt."""
    if isinstance(sampling, SamplingParams):
        return [sampling] * len(prompts)
    if isinstance(sampling, Mapping) or not isinstance(sampling, Sequence):
        raise InvalidRequestError(
            "sampling must be SamplingParams, such as SamplingParams(max_tokens=64), or a list of"
            f" them, got {type(sampling).__name__}"
        )
    if len(sampling) != len(prompts):
        raise InvalidRequestError(
            f"sampling has {len(sampling)} elements for {len(prompts)} prompts: "
            "give one for each, or one for all"
        )
    return sampling
