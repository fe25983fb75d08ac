"""Several engines, each in its own process, that look like one engine.

    with DataParallelEngine.from_config(config) as engine:
        [answer] = engine.generate(["Once upon a time"])

Prompts are tokenised here; everything else happens in the processes, each with its own models. An
answer whose process ends continues in another one, token for token.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from diffuspec.core.beside_loop import call_beside
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import (
    DiffuspecError,
    OverloadedError,
    ShuttingDownError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import RoleStatus, ServiceStatus, TargetInfo
from diffuspec.core.losses import Losses
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.data_parallel.connection import EngineConnection
from diffuspec.data_parallel.member import EngineMember
from diffuspec.data_parallel.routing import EngineRouter
from diffuspec.engine.base import ANOTHER_LOOP, EngineBase
from diffuspec.engine.preflight import check_files
from diffuspec.rpc.client.resumption import ResumedAnswer
from diffuspec.rpc.messages.answers import generate_request
from diffuspec.rpc.messages.status import TransportError
from diffuspec.telemetry import logs
from diffuspec.telemetry.series import merge_series, series_text
from diffuspec.text.prompt_memory import prompt_blocks
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec.v1 import coordinator_pb2, engine_process_pb2 as messages

_NO_ENGINE = "no engine can answer now; try again later"
_OWN_LABEL = "all"  # label of metrics counted here, instead of an engine's name


class DataParallelEngine(EngineBase):
    """Routes each request to one of several engines. Belongs to the first event loop that uses
    it.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Any, members: Sequence[EngineMember]
    ) -> None:
        """Take over members whose processes have been started; wait until all are loaded.

        Raises the errors of `Engine.from_config`, after closing the members.
        """
        super().__init__(config, tokenizer)
        self._members = {member.name: member for member in members}
        try:
            infos = [member.wait_until_loaded() for member in members]
        except BaseException:
            self.close()
            raise
        num_sequences = sum(info.max_sequences for info in infos)
        self._info = replace(infos[0], max_sequences=num_sequences)
        num_slots = infos[0].max_sequences + config.target.prefix_slots
        self.router = EngineRouter([*self._members], num_slots)
        self._answers: set[ResumedAnswer] = set()  # unfinished answers
        self._is_draining = False
        self._opening: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @classmethod
    def from_config(
        cls, config: EngineConfig, num_threads: int | None = None
    ) -> DataParallelEngine:
        """Start `data_parallel_size` processes, and wait until all have loaded their models.

        num_threads: threads of each process; None: one for each processor of its share. Raises the
        errors of `Engine.from_config`.
        """
        check_files(config)  # once, and with all faults
        form, level = logs.configured() or ("", "")
        load = functools.partial(
            messages.LoadEngine,
            config=config.model_copy(update={"data_parallel_size": 1}).model_dump_json(),
            num_threads=num_threads or 0,
            num_processes=config.data_parallel_size,
            log_format=form,
            log_level=level,
        )
        members: list[EngineMember] = []
        try:
            for index in range(config.data_parallel_size):
                members.append(EngineMember(str(index), load(index=index)))
            tokenizer = load_tokenizer(config.target.path, config.target.chat_template)
        except BaseException:
            for member in members:
                member.close()
            raise
        return cls(config, tokenizer, members)

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def num_requests(self) -> int:
        return len(self._answers)

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + sum(one.cpu_seconds() for one in self._members.values())

    def cancel(self, request_id: str) -> bool:
        asked = [answer for answer in self._answers if answer.request_id == request_id]
        return any([answer.cancel() for answer in asked])

    async def status(self) -> ServiceStatus:
        """Return a role for each process, and `verifier`, which is healthy while any of them is."""
        await self._opened()
        found = await asyncio.gather(*(member.status() for member in self._members.values()))
        is_served = any(role.is_healthy for role, _ in found)
        served = RoleStatus("verifier", "", is_served, "" if is_served else _NO_ENGINE)
        roles = [role for role, _ in found]
        reasons = [f"{role.name}: {role.reason}" for role in roles if not role.is_healthy]
        return ServiceStatus.merge([status for _, status in found], [served, *roles], reasons)

    async def series(self) -> str:
        """Return the series of all engines, with the label `engine`."""
        await self._opened()
        texts = {_OWN_LABEL: series_text([self.metrics.audits.family()])}
        for name, connection in self._open_connections().items():
            with contextlib.suppress(TransportError):
                texts[name] = await connection.series()
        return merge_series("engine", texts)

    async def reset_prefix_cache(self) -> None:
        """Empty the caches of all engines. Call it only while no request is running."""
        await self._opened()
        for name, connection in self._open_connections().items():
            await connection.reset_prefix_cache()
            self.router.forget(name)

    async def stop(self, drain_seconds: float = 0.0) -> None:
        self._is_draining = True
        try:
            if drain_seconds:
                await self._ended(drain_seconds)
            for answer in self._answers:
                answer.cancel()
            await self._ended(None)
        finally:
            self._is_draining = False

    async def _ended(self, seconds: float | None) -> None:
        if waiting := [answer.closed for answer in self._answers]:
            await asyncio.wait(waiting, timeout=seconds)

    async def __aexit__(self, *details: object) -> None:
        try:
            await self.stop()
            await self._disconnect()
        finally:
            await asyncio.to_thread(self.close)

    def _close(self) -> None:
        self._is_closed = True
        runner, self._runner = self._runner, None
        with contextlib.ExitStack() as stack:
            for member in self._members.values():
                stack.callback(member.close)
            if runner is not None:
                stack.callback(call_beside, runner.close)
                call_beside(runner.run, self._disconnect())

    async def _disconnect(self) -> None:
        """Close the connections, which ends the processes."""
        if self._opening is not None:
            await asyncio.gather(*(member.disconnect() for member in self._members.values()))

    async def _opened(self) -> None:
        """Connect to the engines on first use."""
        if self._opening is None:
            outside = contextvars.Context()  # a context outside any request
            self._opening = asyncio.create_task(self._open(), context=outside)
        elif self._opening.get_loop() is not asyncio.get_running_loop():
            raise RuntimeError(ANOTHER_LOOP)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        for member in self._members.values():
            await member.open(self._on_change)

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _open_connections(self) -> dict[str, EngineConnection]:
        return {
            name: member.connection
            for name, member in self._members.items()
            if member.connection is not None and not member.connection.lost.done()
        }

    async def _stream(
        self,
        token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
        committed: TokenIds,
        num_losses: int,
    ) -> AsyncGenerator[RequestOutput]:
        await self._opened()
        if self._is_draining:
            raise ShuttingDownError("the engine is shutting down; try again later")
        message = generate_request(
            token_ids.tolist(),
            sampling.with_seed(),
            speculation,
            request_id,
            committed.tolist(),
            num_losses,
        )
        route = _Route(self, message, token_ids)
        answer = ResumedAnswer(route.ask, route.wait_for_another, request_id, num_losses)
        stream = answer.stream()
        if self.spans is not None:
            stream = self.spans.follow(stream, request_id or "", len(token_ids))
        self._answers.add(answer)
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    yield output
        finally:
            self._answers.discard(answer)

    def choose(
        self, blocks: Sequence[bytes], num_tokens: int, losses: Losses
    ) -> list[tuple[str, EngineConnection]]:
        """Return the engines to try for a prompt, in order.

        Suspects share a single engine, if possible, which gets no other requests meanwhile.
        """
        there = self._open_connections()
        with_suspects = {name: one for name, one in there.items() if one.num_suspects}
        if losses.is_suspect:
            there = with_suspects or there
        else:
            there = {name: there[name] for name in there.keys() - with_suspects} or there
        loads = {name: connection.num_answers for name, connection in there.items()}
        return [(name, there[name]) for name in self.router.rank(blocks, num_tokens, loads)]

    async def another(self) -> None:
        """Wait for a usable engine. Raises VerifierUnavailableError if there is none in time."""
        seconds = self.config.coordinator.max_verifier_outage_seconds
        try:
            async with asyncio.timeout(seconds):
                while not self._open_connections():
                    await self._changed.wait()
        except TimeoutError:
            raise VerifierUnavailableError(_NO_ENGINE) from None


class _Route:
    """One request, which may move from engine to engine."""

    def __init__(
        self,
        engine: DataParallelEngine,
        request: coordinator_pb2.GenerateRequest,
        token_ids: TokenIds,
    ) -> None:
        self._engine = engine
        self._request = request
        self._num_committed = len(request.committed_token_ids)  # tokens committed earlier elsewhere
        self._blocks = prompt_blocks(token_ids, request.sampling.cache_salt or None)
        self._num_tokens = len(token_ids)

    async def ask(self, committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
        del self._request.committed_token_ids[self._num_committed :]
        self._request.committed_token_ids.extend(committed)
        self._request.num_losses = losses.number
        return self._rest(losses)

    async def wait_for_another(self, error: TransportError) -> None:
        await self._engine.another()

    async def _rest(self, losses: Losses) -> AsyncGenerator[RequestOutput]:
        """Yield what follows the committed tokens, from the first engine that takes the request."""
        refusal: DiffuspecError = TransportError(_NO_ENGINE)
        for name, connection in self._engine.choose(self._blocks, self._num_tokens, losses):
            self._engine.router.remember(self._blocks, name)
            try:
                async with contextlib.aclosing(connection.stream(self._request)) as outputs:
                    async for output in outputs:
                        yield output
                return
            except OverloadedError as error:
                refusal = error
        raise refusal
