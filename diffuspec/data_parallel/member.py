"""One of several engines: its process, which is restarted when it ends, and the connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import psutil

from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.core.interfaces import RoleStatus, ServiceStatus, TargetInfo
from diffuspec.data_parallel.connection import EngineConnection
from diffuspec.data_parallel.process import EngineProcess
from diffuspec.v1 import engine_process_pb2 as messages

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 30.0  # pauses before a restart
_WELL_SECONDS = 60.0  # running time after which a process's earlier failures are forgotten
_STATUS_SECONDS = 2.0
_CHECK_SECONDS = 2.0  # pause between two checks that the process is alive
_SILENT_SECONDS = 30.0  # silence after which a process is killed


class EngineMember:
    """Starts a process at once, and connects to it in the event loop that calls `open`."""

    def __init__(self, name: str, load: messages.LoadEngine) -> None:
        self.name = name
        self.process = EngineProcess.start(load)
        self.connection: EngineConnection | None = None  # None while no engine answers
        self.problem = ""  # why there is no connection
        self._load = load
        self._supervising: asyncio.Task[None] | None = None

    def wait_until_loaded(self) -> TargetInfo:
        """See `EngineProcess.wait_until_loaded`."""
        return self.process.wait_until_loaded()

    async def open(self, on_change: Callable[[], None]) -> None:
        """Connect, and restart the process whenever it ends; then call `on_change`.

        A process that is silent for _SILENT_SECONDS is killed.
        """
        await self._connect()
        self._supervising = asyncio.create_task(self._supervise(on_change))

    async def disconnect(self) -> None:
        """End the process by closing its connection."""
        if self._supervising is not None:
            self._supervising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervising
        if self.connection is not None:
            self.connection.close()
            await self.connection.lost

    def close(self) -> None:
        """Wait for the end of the process."""
        self.process.close()

    def cpu_seconds(self) -> float:
        """Processor seconds of the process; 0 once it has ended."""
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    async def status(self) -> tuple[RoleStatus, ServiceStatus]:
        """Return the state of the process, and of its requests.

        During a long verification a process may not report the state of its requests.
        """
        name, where, problem = f"engine {self.name}", f"pid {self.process.pid}", self.problem
        if (connection := self.connection) is not None:
            try:
                async with asyncio.timeout(_STATUS_SECONDS):
                    return RoleStatus(name, where), await connection.status()
            except TimeoutError:
                number = connection.num_answers
                return RoleStatus(name, where), ServiceStatus((), num_running=number)
            except WorkerError as error:
                problem = str(error)
        return RoleStatus(name, where, False, problem), ServiceStatus(())

    async def _connect(self) -> None:
        connection = EngineConnection()
        await connection.open(self.process.socket)
        self.connection, self.problem = connection, ""

    async def _supervise(self, on_change: Callable[[], None]) -> None:
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while True:
            assert self.connection is not None
            started = time.monotonic()
            checking = asyncio.create_task(self._end_if_silent(self.connection))
            try:
                await asyncio.shield(self.connection.lost)
            finally:
                checking.cancel()
            self.connection = None
            self.problem = f"its process {await asyncio.to_thread(self.process.wait)}"
            if time.monotonic() - started > _WELL_SECONDS:
                backoff.succeeded()
            while self.connection is None:
                logger.error("engine %s: %s; it is started again", self.name, self.problem)
                await asyncio.sleep(backoff.failed())
                await self._restart()
            on_change()

    async def _end_if_silent(self, connection: EngineConnection) -> None:
        with contextlib.suppress(WorkerError):  # the process may have ended
            while True:
                await asyncio.sleep(_CHECK_SECONDS)
                try:
                    async with asyncio.timeout(_SILENT_SECONDS):
                        await connection.status()
                except TimeoutError:
                    logger.error("engine %s said nothing for %g s", self.name, _SILENT_SECONDS)
                    self.process.kill()
                    return

    async def _restart(self) -> None:
        try:
            self.process = await asyncio.to_thread(EngineProcess.start, self._load)
            try:
                await asyncio.to_thread(self.process.wait_until_loaded)
            except BaseException:
                self.process.kill()
                raise
            await self._connect()
        except (DiffuspecError, OSError) as error:
            self.problem = str(error)
            await asyncio.to_thread(self.process.close)
            return
        logger.info("engine %s answers again, as process %d", self.name, self.process.pid)
