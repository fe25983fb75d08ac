"""TrialProcess: a trial helper as the service sees it, started again when it has died."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from diffuspec.core.params import StructuredOutput
from diffuspec.text.trial_messages import LENGTH, READY, Setup, Verdict, form_to_bytes

logger = logging.getLogger(__name__)

COMMAND: tuple[str, ...] = (sys.executable, "-m", "diffuspec.text.trial_helper")
# numpy's libraries would start threads, which do not survive a fork
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_START_SECONDS = 60.0
_GRACE_SECONDS = 5.0  # after the limit of a trial, before the helper is taken for dead
_NUM_ATTEMPTS = 2  # helpers that may die at one trial
_MAX_READ = 65_536
_LATE = Verdict("late", "the process that tries new forms has failed")


class TrialProcess:
    """Tries forms in a helper process. May be used in several event loops, one after the other."""

    def __init__(self, read_setup: Callable[[], Setup], command: Sequence[str] = COMMAND) -> None:
        """read_setup: called in a thread whenever a helper is started."""
        self._read_setup = read_setup
        self._command = command
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trials")
        self._starting: Future[_Running] | None = None
        self._running: _Running | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The helper's process id; None if none is running."""
        return None if self._running is None else self._running.process.pid

    def start(self) -> Future[_Running]:
        """Start a helper in a thread, unless one is starting or running."""
        if self._starting is None or _has_ended(self._starting):
            self._starting = self._thread.submit(self._start)
        return self._starting

    async def try_form(self, form: StructuredOutput) -> Verdict:
        """Try a form. The trial is over when this returns, raises or is cancelled."""
        for _ in range(_NUM_ATTEMPTS):
            if self._is_closed:
                break
            try:
                # a caller that leaves must not keep others from the helper
                running = await asyncio.shield(asyncio.wrap_future(self.start()))
                return await running.try_form(form)
            except (OSError, EOFError) as error:  # a TimeoutError is an OSError
                if not self._is_closed:
                    logger.warning("the process that tries new forms has failed: %r", error)
        return _LATE

    def close(self) -> None:
        """End the helper and its trials, without waiting for any of them."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            self._running.close()

    def _start(self) -> _Running:
        """Start a helper, and wait until it is ready. Raises OSError and EOFError."""
        setup = self._read_setup()
        if self._running is not None:
            self._running.close()  # it has ended; its socket has not
        self._running = running = _Running(self._command, setup.limits.wall_seconds)
        if self._is_closed:
            running.close()
        running.begin(setup)
        return running


class _Running:
    """One helper process."""

    def __init__(self, command: Sequence[str], wall_seconds: float) -> None:
        self._wall_seconds = wall_seconds
        # It imports modules from the same places as this process.
        path = os.pathsep.join(filter(None, sys.path))
        own = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", **_ENVIRONMENT}
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=2,
                env={**os.environ, **own},
                process_group=0,  # an interrupt from the terminal is not meant for it
            )

    def begin(self, setup: Setup) -> None:
        """Send the setup, and wait for the helper. Raises OSError and EOFError."""
        try:
            self._control.settimeout(_START_SECONDS)
            self._control.sendall(setup.to_bytes())
            if self._control.recv(len(READY)) != READY:
                raise EOFError("it ended as it started")
            self._control.setblocking(False)
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    async def try_form(self, form: StructuredOutput) -> Verdict:
        """Try a form. Raises OSError and EOFError once the helper has ended."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [READY], [theirs.fileno()])
                theirs.close()
                async with asyncio.timeout(self._wall_seconds + _GRACE_SECONDS):
                    loop = asyncio.get_running_loop()
                    await loop.sock_sendall(ours, form_to_bytes(form))
                    return Verdict.from_bytes(await _read_frame(ours))
            except (TimeoutError, OSError, EOFError):
                self.close()  # it is stuck, or has ended
                raise

    def close(self) -> None:
        """Kill the process, and its trials with it."""
        self._control.close()
        self.process.kill()
        self.process.wait()


def _has_ended(starting: Future[_Running]) -> bool:
    return starting.done() and (
        starting.cancelled() or starting.exception() is not None or starting.result().has_ended
    )


async def _read_frame(connection: socket.socket) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        chunk = await loop.sock_recv(connection, _MAX_READ)
        data += chunk
        if not chunk or len(data) > _MAX_READ:
            raise EOFError("it ended")
    return bytes(data[LENGTH.size :])
