"""The program of an engine process: loads an engine, and serves the requests on its socket.

    python -m diffuspec.data_parallel.worker      with a socket as standard input

It ends when the other end of the socket is closed, however that happens. It ignores signals meant
for the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

import uvloop

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import WorkerError
from diffuspec.core.losses import on_begin
from diffuspec.core.memory import share_heaps
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import RequestOutput
from diffuspec.data_parallel.connection import MAX_UNREAD_OUTPUTS
from diffuspec.data_parallel.frames import MAX_FRAME_BYTES, FrameProtocol, open_frames
from diffuspec.engine.engine import Engine
from diffuspec.models.worker import keep_loop_for_short_calls
from diffuspec.rpc.messages.answers import put_output, status_to_proto, take_request
from diffuspec.rpc.messages.status import step_error
from diffuspec.rpc.messages.values import info_to_proto
from diffuspec.telemetry import context as telemetry, logs
from diffuspec.v1 import coordinator_pb2, engine_process_pb2 as messages

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_DEFAULT_SPECULATION = SpeculationParams()


class Reports:
    """Reports to the other side, collected and sent once per turn of the event loop."""

    def __init__(self, frames: FrameProtocol) -> None:
        self._frames = frames
        self._report = messages.EngineReport()
        self._sending: asyncio.Task[None] | asyncio.Handle | None = None

    def output(self, number: int, output: RequestOutput) -> None:
        self._later()
        put_output(self._report.updates.add(number=number).output, output)

    def begun(self, number: int) -> None:
        self._later()
        self._report.updates.add(number=number, has_begun=True)

    def error(self, number: int, error: BaseException) -> None:
        self._later()
        self._report.updates.add(number=number, error=step_error(error))

    def reply(self, number: int, **reply: Any) -> None:
        self._later()
        self._report.replies.add(number=number, **reply)

    def _later(self) -> None:
        if self._sending is None:
            self._sending = asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if not self._frames.is_writable:  # they are sent with later outputs
            self._sending = asyncio.create_task(self._send_when_writable())
            return
        self._sending = None
        report, self._report = self._report, messages.EngineReport()
        data = report.SerializeToString()
        if len(data) <= MAX_FRAME_BYTES:
            self._frames.write(data)
            return
        for update in report.updates:
            self._frames.write(_bounded(update).SerializeToString())
        self._frames.write(messages.EngineReport(replies=report.replies).SerializeToString())

    async def _send_when_writable(self) -> None:
        await self._frames.writable()
        self._send()


def _bounded(update: messages.AnswerUpdate) -> messages.EngineReport:
    """Return a report of one update, or of an error if the update is too long for a frame."""
    report = messages.EngineReport(updates=[update])
    if report.ByteSize() <= MAX_FRAME_BYTES:
        return report
    error = WorkerError(f"an output has {update.ByteSize()} bytes: ask for fewer log-probabilities")
    return messages.EngineReport(
        updates=[messages.AnswerUpdate(number=update.number, error=step_error(error))]
    )


class Answer:
    """One answer: a task that reports outputs, a bounded number ahead of their reader."""

    def __init__(self, engine: Engine, begin: messages.BeginAnswer, reports: Reports) -> None:
        self._engine, self._number, self._reports = engine, begin.number, reports
        self._num_allowed = MAX_UNREAD_OUTPUTS
        self._allowed = asyncio.Event()
        self.task = asyncio.create_task(self._work(begin))

    def allow(self, num_outputs: int) -> None:
        self._num_allowed += num_outputs
        self._allowed.set()

    async def _work(self, begin: messages.BeginAnswer) -> None:
        on_begin.set(lambda: self._reports.begun(self._number))
        telemetry.request_id.set(begin.request.request_id)
        telemetry.follow_trace(begin.traceparent)
        telemetry.key_name.set(begin.request.key_name)
        try:
            await self._report_outputs(begin.request)
        except Exception as error:
            self._reports.error(self._number, error)

    async def _report_outputs(self, request: coordinator_pb2.GenerateRequest) -> None:
        stream = self._engine.stream(*take_request(request, _DEFAULT_SPECULATION))
        async with contextlib.aclosing(stream):
            async for output in stream:
                self._reports.output(self._number, output)
                self._num_allowed -= 1
                while self._num_allowed <= 0:
                    self._allowed.clear()
                    await self._allowed.wait()


class Worker:
    """An engine, and the requests received on its socket."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()  # set once the other side has gone
        self._frames = FrameProtocol(self._on_message, self._on_lost)
        self._reports = Reports(self._frames)
        self._engine: Engine | None = None
        self._answers: dict[int, Answer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, connection: socket.socket) -> None:
        """Load the requested engine, and serve until the other side goes away."""
        await open_frames(self._frames, connection)
        await self.ended.wait()
        if self._engine is not None:
            for task in self._tasks:
                task.cancel()
            await self._engine.stop()
            await asyncio.to_thread(self._engine.close)

    def _on_lost(self, error: Exception | None) -> None:
        self.ended.set()

    def _on_message(self, data: bytes) -> None:
        command = messages.EngineCommand.FromString(data)
        kind = command.WhichOneof("command")
        if kind == "load":
            self._start(self._load(command.load))
        elif kind == "begin":
            self._begin(command.begin)
        elif kind == "end" and command.end.number in self._answers:
            self._answers[command.end.number].task.cancel()
        elif kind == "allow" and command.allow.number in self._answers:
            self._answers[command.allow.number].allow(command.allow.num_outputs)
        elif kind in ("get_status", "get_series", "reset_prefix_cache"):
            self._start(self._reply(kind, getattr(command, kind)))

    def _start(self, work: Any) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, begin: messages.BeginAnswer) -> None:
        assert self._engine is not None
        answer = self._answers[begin.number] = Answer(self._engine, begin, self._reports)
        self._keep(answer.task)
        answer.task.add_done_callback(lambda _: self._answers.pop(begin.number))

    async def _load(self, load: messages.LoadEngine) -> None:
        # This binds the thread, and all threads it starts later: engines that share processors lose
        # a fifth of their speed to migrating threads.
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, own_processors(load.index, load.num_processes, processors))
        try:
            self._engine = await asyncio.to_thread(load_engine, load)
            self._engine.on_broken = lambda _: self.ended.set()  # the parent starts another process
            await asyncio.to_thread(self._engine.prepare_forms)
            await self._engine.start()
        except Exception as error:  # the other side waits for a reply
            self._reports.reply(0, error=step_error(error))
        else:
            self._reports.reply(0, info=info_to_proto(self._engine.info))

    async def _reply(self, kind: str, number: int) -> None:
        assert self._engine is not None
        try:
            if kind == "get_status":
                status = await self._engine.status()
                self._reports.reply(number, status=status_to_proto(status))
            elif kind == "get_series":
                self._reports.reply(number, series=await self._engine.series())
            else:
                self._engine.reset_prefix_cache()
                self._reports.reply(number)
        except Exception as error:
            self._reports.reply(number, error=step_error(error))


def load_engine(load: messages.LoadEngine) -> Engine:
    """Load an engine as configured, with a thread for each processor and its own GPU."""
    import torch

    if load.log_format:
        form: Any = load.log_format
        level: Any = load.log_level
        logs.configure(form, level)
    own = own_gpu(load.index, torch.cuda.device_count(), os.environ.get(_VISIBLE_GPUS, ""))
    if own is not None:
        os.environ[_VISIBLE_GPUS] = own  # CUDA reads this when the first model is loaded
    num_processors = len(os.sched_getaffinity(0))
    torch.set_num_threads(load.num_threads or min(torch.get_num_threads(), num_processors))
    if num_processors == 1 and not torch.cuda.is_available():
        keep_loop_for_short_calls()
    return Engine.from_config(EngineConfig.model_validate_json(load.config))


def own_processors(index: int, num_processes: int, processors: Sequence[int]) -> Sequence[int]:
    """Return a process's share of the processors; all of them if there are too few."""
    each = len(processors) // num_processes
    return processors[index * each : (index + 1) * each] if each else processors


def own_gpu(index: int, num_gpus: int, visible: str) -> str | None:
    """Return the name of a process's GPU for CUDA; None if there is no choice.

    visible: names of the GPUs that processes may use, separated by commas; empty: all.
    """
    if num_gpus < 2:
        return None
    names = visible.split(",") if visible else [str(number) for number in range(num_gpus)]
    return names[index % num_gpus].strip()


def main() -> None:
    share_heaps()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    async def serve() -> None:
        await Worker().serve(socket.socket(fileno=0))
        os._exit(0)  # do not wait for torch, or for models that are being loaded

    uvloop.run(serve())


if __name__ == "__main__":
    main()
