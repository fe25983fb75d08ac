"""A service that is started for a run, as users start it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import httpx2

from deploy.ports import reserved_port
from diffuspec.core.errors import WorkerError

ROOT = Path(__file__).parents[1]
_START_SECONDS = 300.0
_END_SECONDS = 150.0  # it lets requests finish
_POLL_SECONDS = 0.2
_TAIL_BYTES = 2000


class ServiceKind(StrEnum):
    """The two ways to serve on one machine."""

    SERVE = "serve"  # diffuspec serve
    RAY = "ray"  # python -m deploy.serve, which is make serve


COMMANDS: Mapping[ServiceKind, Sequence[str]] = {
    ServiceKind.SERVE: ("-m", "diffuspec", "serve"),
    ServiceKind.RAY: ("-m", "deploy.serve"),
}


@dataclass(slots=True)
class Service:
    """A process that serves; its output is in `log`."""

    port: int
    log: Path
    process: asyncio.subprocess.Process
    is_stopped: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def tail(self) -> str:
        """The end of the log, in one line."""
        return " ".join(self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").split())

    async def stop(self) -> str | None:
        """Send SIGTERM; return how the end differs from what was promised, None if it does not."""
        self.is_stopped = True
        if self.has_ended:
            return f"ended with status {self.process.returncode} during the run: {self.tail()}"
        self.process.terminate()
        try:
            async with asyncio.timeout(_END_SECONDS):
                status = await self.process.wait()
        except TimeoutError:
            return f"did not end within {_END_SECONDS:.0f} s of SIGTERM"
        is_good = status in (0, 128 + signal.SIGTERM)
        return None if is_good else f"ended with status {status}: {self.tail()}"


@contextlib.asynccontextmanager
async def started(
    kind: ServiceKind, log: Path, options: Sequence[str] = ()
) -> AsyncIterator[Service]:
    """Enter when the service is ready. Nothing of it is left after the end. Raises WorkerError.

    `options`: further ones of its command.
    """
    with reserved_port() as port, log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *COMMANDS[kind], "--port", str(port), *options),
            cwd=ROOT,
            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        service = Service(port, log, process)
        try:
            await _until_ready(service)
            yield service
        finally:
            if not service.is_stopped:
                await service.stop()
            with contextlib.suppress(ProcessLookupError):  # normally it has ended, with its group
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _until_ready(service: Service) -> None:
    with contextlib.suppress(TimeoutError):
        async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(_START_SECONDS):
            while not service.has_ended:
                with contextlib.suppress(httpx2.HTTPError):
                    if (await http.get(f"{service.url}/ready")).status_code == 200:
                        return
                await asyncio.sleep(_POLL_SECONDS)
    raise WorkerError(f"the service does not start ({service.log}): {service.tail()}")
