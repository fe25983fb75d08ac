"""An engine process, from start to end. It ends when its socket is closed on this side."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Self

from diffuspec.core.interfaces import TargetInfo
from diffuspec.data_parallel.frames import frame, read_frame
from diffuspec.rpc.messages.status import TransportError, from_step_error
from diffuspec.rpc.messages.values import info_from_proto
from diffuspec.v1 import engine_process_pb2 as messages

PYTHON: tuple[str, ...] = (sys.executable,)
_WORKER = "diffuspec.data_parallel.worker"
_GRACE_SECONDS = 10.0  # time for the process to end on its own


class EngineProcess:
    """A process that loads an engine; its standard input is the other end of `socket`."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self.socket = connection

    @classmethod
    def start(cls, load: messages.LoadEngine) -> Self:
        """Start a process, and send it what to load."""
        # It imports modules from the same places as this process.
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*PYTHON, "-m", _WORKER], stdin=theirs.fileno(), stdout=2, env=environment
            )
        # the process may have ended: `wait_until_loaded` reports it
        with contextlib.suppress(OSError):
            ours.sendall(frame(messages.EngineCommand(load=load).SerializeToString()))
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_loaded(self) -> TargetInfo:
        """Wait for the models. Raises the errors of `Engine.from_config`, and TransportError."""
        try:
            report = messages.EngineReport.FromString(read_frame(self.socket))
        except (TransportError, OSError) as error:
            raise TransportError(f"the process of an engine {self.wait()} as it loaded") from error
        [reply] = report.replies
        if reply.WhichOneof("reply") == "error":
            raise from_step_error(reply.error)
        return info_from_proto(reply.info)

    def wait(self) -> str:
        """Wait for the process to end after its connection; kill it if that takes too long.

        Returns how it ended, as a verb phrase.
        """
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def close(self) -> None:
        """Close the connection, which ends the process, and wait for the end."""
        with contextlib.suppress(OSError):  # the connection may be closed
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.wait()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
