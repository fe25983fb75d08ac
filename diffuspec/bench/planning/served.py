"""Engines of another make, such as vLLM, that get their drafts from a draft server.

The server's sessions, planners and dispatcher are the real ones. Each engine here works as vLLM
does: a step verifies chains and reads parts of prompts, and then waits for the next drafts.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from diffuspec.bench.load import TimedTokens
from diffuspec.bench.planning.machines import CallSize, Machine
from diffuspec.bench.planning.processor import Processor, Worker
from diffuspec.bench.planning.roles import INFO, SimulatedDrafter
from diffuspec.bench.planning.traffic import VOCAB_SIZE, Answer
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Prompt, StepStats
from diffuspec.draft_server.dispatcher import Dispatcher
from diffuspec.draft_server.held_tokens import HeldTokens
from diffuspec.draft_server.metrics import DraftMetrics, SessionStats
from diffuspec.draft_server.planner import Planner
from diffuspec.draft_server.session import Session
from diffuspec.draft_server.tenants import Tenant
from diffuspec.v1.draft_service_pb2 import (
    DRAFT_SOURCE_AHEAD,
    DRAFT_SOURCE_FRESH,
    EngineStep,
    Hello,
    RequestRow,
    RowDraft,
)

MAX_DRAFT_TOKENS = 12  # longest draft of an engine's request, as in docs/engines.md
_MAX_MODEL_LEN = 2**17
_PROMPT_TOKENS = 2048  # most prompt tokens that a step reads: vLLM's default
_DEADLINE_SECONDS = 0.25  # for an answer of the server: the clients' default
_MAX_SILENT_STEPS = 64  # the clients' number
_MAX_DRAFT_SECONDS, _PROFILE_SECONDS = 10.0, 2.0  # the server's defaults


class ServedEngines:
    """A draft server and its engines. Belongs to a loop in virtual time; an async context."""

    def __init__(
        self,
        machine: Machine,
        answers: Sequence[Answer],
        num_engines: int,
        max_sequences: int,
        num_shared_tokens: int = 0,
    ) -> None:
        """max_sequences: of an engine. num_shared_tokens: leading tokens that all prompts share."""
        beside = copy.copy(machine)
        beside.network_seconds = 0.0  # the network is between engines and server
        drafter = SimulatedDrafter(beside, Processor(0.0), answers, num_shared_tokens)
        info = replace(
            INFO, max_model_len=_MAX_MODEL_LEN, max_sequences=num_engines * max_sequences
        )
        self._metrics, self._held = DraftMetrics(), HeldTokens(2**22)
        self._dispatcher = Dispatcher(drafter, info, _MAX_DRAFT_SECONDS, self._metrics)
        self._tasks: list[asyncio.Task[None]] = []
        self.clients = [
            ServedEngine(
                machine,
                answers,
                self._session(number, info, max_sequences),
                max_sequences,
                num_shared_tokens,
            )
            for number in range(num_engines)
        ]
        self.targets = [engine.worker for engine in self.clients]
        self.drafters = [drafter.worker]

    def _session(self, number: int, info: TargetInfo, max_sequences: int) -> Session:
        hello = Hello(
            protocol_version=1,
            engine="simulated",
            vocab_size=VOCAB_SIZE,
            max_model_len=_MAX_MODEL_LEN,
            max_requests=max_sequences,
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_silent_steps=_MAX_SILENT_STEPS,
        )
        session = Session(
            f"engine-{number}",
            hello,
            Planner("simulated", lambda: self._dispatcher.costs),
            info,
            self._dispatcher,
            Tenant(1.0),
            SessionStats(self._metrics, None),
            0.5,
            self._held,
        )
        self._dispatcher.pre_draft_sources.append(session.pre_drafts)
        return session

    async def __aenter__(self) -> Self:
        await self._dispatcher.profile(_PROFILE_SECONDS)
        loops = [self._dispatcher.run(), *(engine.run() for engine in self.clients)]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(slots=True, eq=False)
class _Served:
    """A request in an engine."""

    answer: Answer
    num_unread: int  # tokens of its prompt
    num_done: int = 0  # tokens of its answer
    num_reported: int = 0  # tokens that the server holds
    parts: asyncio.Queue[int] = field(default_factory=asyncio.Queue)  # numbers of new tokens

    @property
    def name(self) -> str:
        return str(self.answer.number)

    @property
    def num_left(self) -> int:
        return self.answer.num_tokens - self.num_done

    @property
    def num_cached(self) -> int:
        """Tokens in the engine's cache."""
        return len(self.answer.prompt) - self.num_unread + max(self.num_done - 1, 0)

    def row(self) -> RequestRow:
        """Report its new tokens."""
        prompt, base = self.answer.prompt, self.num_reported
        tokens = (*prompt, *self.answer.own[: self.num_done])
        self.num_reported = len(tokens)
        return RequestRow(
            request_id=self.name,
            base_length=base,
            token_ids=tokens[base:],
            num_prompt_tokens=0 if base else len(prompt),
            max_tokens_left=self.num_left,
        )

    def commit(self, draft: Sequence[int]) -> StepStats:
        """Take the right part of a draft and the target's own token."""
        accepted, own = 0, self.answer.own[self.num_done :]
        while accepted < len(draft) and draft[accepted] == own[accepted]:
            accepted += 1
        committed = min(accepted + 1, self.num_left)
        self.num_done += committed
        self.parts.put_nowait(committed)
        return StepStats(len(draft), len(draft), min(accepted, committed), committed)


class ServedEngine:
    """One engine: a `LoadClient`. `run` decodes what is asked of it."""

    def __init__(
        self,
        machine: Machine,
        answers: Sequence[Answer],
        session: Session,
        max_sequences: int,
        num_shared_tokens: int,
    ) -> None:
        self.worker = Worker(Processor(0.0))
        self.steps: list[StepStats] = []  # steps of all requests so far
        self._machine, self._answers, self._session = machine, answers, session
        self._max_sequences, self._num_shared_tokens = max_sequences, num_shared_tokens
        self._waiting: deque[_Served] = deque()
        self._running: list[_Served] = []
        self._arrival = asyncio.Event()
        self._ended: list[str] = []  # requests that the server does not know to have ended
        self._step_id = 0
        # since the last answer: seconds of steps, 0 if they read prompts; unreported steps
        self._verify_seconds: float | None = 0.0
        self._wait_seconds = 0.0  # for the last answer
        self._num_silent = self._num_left_silent = 0
        self._silent_for: list[_Served] = []

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        """Yield the answer to a prompt. `max_tokens` is ignored: each answer has its own length."""
        number = prompt[0]
        assert isinstance(number, int), "prompts are of simulated traffic"
        answer = self._answers[number]
        served = _Served(answer, max(len(answer.prompt) - self._num_shared_tokens, 1))
        self._waiting.append(served)
        self._arrival.set()
        num_left = answer.num_tokens
        while num_left:
            num_tokens = await served.parts.get()
            num_left -= num_tokens
            yield TimedTokens(time.monotonic(), num_tokens, "")

    async def run(self) -> None:
        """Decode until cancelled."""
        while True:
            while self._waiting and len(self._running) < self._max_sequences:
                self._running.append(self._waiting.popleft())
            if self._running:
                await self._step()
            else:
                self._arrival.clear()
                await self._arrival.wait()

    async def _step(self) -> None:
        decoding = [request for request in self._running if not request.num_unread]
        drafts = await self._drafts(decoding)
        num_read, read = 0, list[_Served]()
        for request in self._running:
            number = min(request.num_unread, _PROMPT_TOKENS - num_read)
            if number:
                request.num_unread -= number
                num_read += number
                read.append(request)
        num_rows = sum([1 + len(draft.token_ids) for draft in drafts])
        batch = [*decoding, *read]
        num_cached = sum([request.num_cached for request in batch]) - num_read
        started = time.monotonic()
        size = CallSize(len(batch), num_rows, num_read, num_cached)
        await self.worker.run(self._machine.verify_seconds(size))
        if read or self._verify_seconds is None:
            self._verify_seconds = None
        else:
            self._verify_seconds += time.monotonic() - started
        for request, draft in zip(decoding, drafts, strict=True):
            step = request.commit(draft.token_ids)
            if draft.source in (DRAFT_SOURCE_AHEAD, DRAFT_SOURCE_FRESH):
                step.pre_draft = "hit" if draft.source == DRAFT_SOURCE_AHEAD else "miss"
            self.steps.append(step)
        for request in read:
            if not request.num_unread:
                self.steps.append(request.commit(()))
        self._ended += [request.name for request in self._running if not request.num_left]
        self._running = [request for request in self._running if request.num_left]

    async def _drafts(self, requests: list[_Served]) -> Sequence[RowDraft]:
        """Report the step before, and wait for drafts; none if the server had said so."""
        if not requests or (self._num_left_silent and requests == self._silent_for):
            self._num_left_silent -= bool(requests)
            self._num_silent += bool(requests)
            return [RowDraft()] * len(requests)
        self._step_id += 1
        step = EngineStep(
            step_id=self._step_id,
            rows=[request.row() for request in requests],
            ended_request_ids=self._ended,
            deadline_seconds=_DEADLINE_SECONDS,
            verify_seconds=self._verify_seconds or 0.0,
            wait_seconds=self._wait_seconds,
            num_silent_steps=self._num_silent,
        )
        started = time.monotonic()
        await self._cross_network()
        answer = await self._session.step(step)
        self._session.draft_ahead()
        await self._cross_network()
        self._wait_seconds, self._verify_seconds = time.monotonic() - started, 0.0
        self._ended, self._num_silent = [], 0
        self._num_left_silent, self._silent_for = answer.num_silent_steps, requests
        return answer.rows

    async def _cross_network(self) -> None:
        if self._machine.network_seconds:
            await asyncio.sleep(self._machine.network_seconds)
