"""Runs a Python program as a child of a fork server, and stands in for it until it ends.

    python forked.py -m MODULE ARGUMENT...
    python forked.py FILE ARGUMENT...          a raylet, which takes this for Ray's own program

Signals are passed on to the program. If no fork server is ready, this process becomes the program
itself. The program's process is a child of the server, not of this process. This file uses only the
standard library; tests/support/fork_server.py is the other end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

SERVER_VARIABLE = "DIFFUSPEC_FORK_SERVER"  # the path of its socket

_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="
_NUM_STREAMS = 3
_NUM_SIZE_BYTES = 4
_CHUNK = 2**16


@dataclass(frozen=True)
class Program:
    """What Python is to run: a command line in which -m is the only option."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    leads_group: bool  # True for a raylet, which kills the process group of a worker that has ended


def forked(*arguments: object) -> list[str]:
    """Return the command for a process that runs Python with these arguments."""
    return [sys.executable, __file__, *map(str, arguments)]


def send_program(connection: socket.socket, program: Program) -> None:
    """Send a program, together with this process's standard streams."""
    data = json.dumps(asdict(program)).encode()
    socket.send_fds(connection, [len(data).to_bytes(_NUM_SIZE_BYTES, "big")], range(_NUM_STREAMS))
    connection.sendall(data)


def receive_program(connection: socket.socket) -> tuple[Program, list[int]]:
    """Return what `send_program` sent, with the streams' descriptors in this process.

    Raises ConnectionError if the other end was killed before it had sent everything.
    """
    header, streams, _, _ = socket.recv_fds(connection, _NUM_SIZE_BYTES, _NUM_STREAMS)
    size, data = int.from_bytes(header, "big"), b""
    while not header or len(data) < size:
        chunk = connection.recv(_CHUNK) if header else b""
        if not chunk:
            for stream in streams:
                os.close(stream)
            raise ConnectionError("closed before all was sent")
        data += chunk
    return Program(**json.loads(data)), streams


def main() -> NoReturn:
    program = _asked_for(sys.argv[1:])
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile() as said:
        try:
            connection.connect(os.environ.get(SERVER_VARIABLE, ""))
            send_program(connection, program)
            pid = int(said.readline())
        except (OSError, ValueError):  # there is no server, or it has ended
            command = [sys.executable, *program.arguments]
            os.execve(sys.executable, command, program.environment)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(said.readline() or -signal.SIGKILL)
    if code < 0:  # ended by a signal
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _asked_for(arguments: list[str]) -> Program:
    """Return the program in a command line, without the arguments that a raylet adds.

    Becomes Ray's own program for a worker whose runtime environment has more than variables.
    """
    context: dict[str, Any] = {}
    kept = []
    for argument in arguments:
        if argument.startswith(_CONTEXT):
            context = json.loads(argument.removeprefix(_CONTEXT))
        # streams are unbuffered anyway
        elif argument != "-u" and not argument.startswith(_LANGUAGE):
            kept.append(argument)
    python = context.pop("py_executable", sys.executable)
    variables = context.pop("env_vars", {})
    if python != sys.executable or any(context.values()):
        _become_rays_own(arguments)
    leads_group = os.getpgrp() == os.getpid()
    return Program(kept, {**os.environ, **variables}, os.getcwd(), leads_group)


def _become_rays_own(arguments: list[str]) -> NoReturn:
    found = importlib.util.find_spec("ray")
    assert found is not None and found.origin is not None, "a raylet has started this"
    program = Path(found.origin).parent / "_private" / "workers" / "setup_worker.py"
    os.execv(sys.executable, [sys.executable, str(program), *arguments])


if __name__ == "__main__":
    main()
