"""The connection to an engine process, for answers and calls."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncGenerator

from diffuspec.core.errors import DiffuspecError
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.losses import SUSPECT_LOSSES
from diffuspec.core.outputs import Outputs
from diffuspec.core.types import RequestOutput
from diffuspec.data_parallel.frames import FrameProtocol, open_frames
from diffuspec.rpc.messages.answers import request_output_from_proto, status_from_proto
from diffuspec.rpc.messages.status import LostAnswerError, TransportError, from_step_error
from diffuspec.telemetry import context as telemetry
from diffuspec.v1 import coordinator_pb2, engine_process_pb2 as messages

MAX_UNREAD_OUTPUTS = 64  # outputs of one answer that are in transit or unread
_ALLOWED_AT_ONCE = MAX_UNREAD_OUTPUTS // 2


class EngineConnection:
    """Belongs to one event loop. Raises TransportError once the process has ended."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # the reason
        self._frames = FrameProtocol(self._on_message, self._on_lost)
        self._numbers = itertools.count(1)
        self._answers: dict[int, Outputs] = {}
        self._begun: set[int] = set()  # answers that have left the engine's queue
        self.num_suspects = 0  # answers that run alone there, or will
        self._calls: dict[int, asyncio.Future[messages.EngineReply]] = {}

    async def open(self, connection: socket.socket) -> None:
        """Take over the socket of an engine that has been loaded."""
        await open_frames(self._frames, connection)

    def close(self) -> None:
        """End the connection, and so the process."""
        self._frames.close()

    @property
    def num_answers(self) -> int:
        """Number of answers in progress."""
        return len(self._answers)

    async def stream(
        self, request: coordinator_pb2.GenerateRequest
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs of an answer; closing the generator cancels it within a step.

        Raises LostAnswerError, a TransportError, if the process ended after the request had left
        the engine's queue.
        """
        self._check_open()
        number = next(self._numbers)
        outputs = self._answers[number] = Outputs()
        is_suspect = request.num_losses >= SUSPECT_LOSSES
        self.num_suspects += is_suspect
        is_over, num_taken = False, 0
        try:
            await self._begin(number, request)
            while not is_over:
                output = await outputs.take()
                if isinstance(output, DiffuspecError):
                    is_over = True
                    raise output
                is_over = output.finish_reason is not None
                num_taken += 1
                if num_taken == _ALLOWED_AT_ONCE and not is_over:
                    self._allow(number, num_taken)
                    num_taken = 0
                yield output
        finally:
            del self._answers[number]
            self._begun.discard(number)
            self.num_suspects -= is_suspect
            if not is_over:
                self._send(messages.EngineCommand(end=messages.EndAnswer(number=number)))

    async def status(self) -> ServiceStatus:
        """Return the state of the engine's requests."""
        reply = await self._call("get_status")
        return status_from_proto(reply.status)

    async def series(self) -> str:
        """Return the engine's Prometheus series as text."""
        return (await self._call("get_series")).series

    async def reset_prefix_cache(self) -> None:
        """Empty the engine's prefix caches. Call it only while the engine is idle."""
        await self._call("reset_prefix_cache")

    async def _begin(self, number: int, request: coordinator_pb2.GenerateRequest) -> None:
        await self._frames.writable()
        begin = messages.BeginAnswer(
            number=number, request=request, traceparent=telemetry.traceparent.get()
        )
        self._send(messages.EngineCommand(begin=begin))

    def _allow(self, number: int, num_outputs: int) -> None:
        allow = messages.AllowOutputs(number=number, num_outputs=num_outputs)
        self._send(messages.EngineCommand(allow=allow))

    async def _call(self, name: str) -> messages.EngineReply:
        self._check_open()
        number = next(self._numbers)
        reply: asyncio.Future[messages.EngineReply] = asyncio.get_running_loop().create_future()
        self._calls[number] = reply
        try:
            command = messages.EngineCommand()
            setattr(command, name, number)
            self._send(command)
            return await reply
        finally:
            del self._calls[number]

    def _send(self, command: messages.EngineCommand) -> None:
        self._frames.write(command.SerializeToString())

    def _check_open(self) -> None:
        if self.lost.done():
            raise TransportError(self.lost.result())

    def _on_message(self, data: bytes) -> None:
        report = messages.EngineReport.FromString(data)
        answers = self._answers
        for update in report.updates:
            outputs = answers.get(update.number)
            if outputs is None:  # the reader has closed the answer
                continue
            if update.HasField("output"):
                outputs.put(request_output_from_proto(update.output))
            elif update.HasField("has_begun"):
                self._begun.add(update.number)
            else:
                outputs.put(from_step_error(update.error))
        for reply in report.replies:
            waiting = self._calls.get(reply.number)
            if waiting is None or waiting.done():
                continue
            if reply.HasField("error"):
                waiting.set_exception(from_step_error(reply.error))
            else:
                waiting.set_result(reply)

    def _on_lost(self, error: Exception | None) -> None:
        reason = f"the process of an engine has ended{f': {error}' if error else ''}"
        self.lost.set_result(reason)
        for number, outputs in self._answers.items():
            kind = LostAnswerError if number in self._begun else TransportError
            outputs.put(kind(reason))
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(TransportError(reason))
