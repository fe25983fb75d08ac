"""Runs a Python program as a child of the fork server, and ends with it, as if it were the program.

    python tests/support/forked.py -m MODULE ARGUMENT...
    python tests/support/forked.py FILE ARGUMENT...          a raylet, which takes it for Ray's own

Signals go on to the program. Without a fork server, becomes the program itself. A process of a
cluster is then below the tests' own process, not below its raylet.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

SERVER_VARIABLE = "DIFFUSPEC_FORK_SERVER"  # the path of its socket

_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="
_NUM_STREAMS = 3
_NUM_SIZE_BYTES = 4
_CHUNK = 2**16


@dataclass(frozen=True)
class Program:
    """What Python is to run: arguments as its own, but of options only -m."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str


def forked(*arguments: object) -> list[str]:
    """Return the command for a process that runs Python with these arguments."""
    return [sys.executable, __file__, *map(str, arguments)]


def send_program(connection: socket.socket, program: Program) -> None:
    """Send a program, with the standard streams of this process."""
    data = json.dumps(asdict(program)).encode()
    socket.send_fds(connection, [len(data).to_bytes(_NUM_SIZE_BYTES, "big")], range(_NUM_STREAMS))
    connection.sendall(data)


def receive_program(connection: socket.socket) -> tuple[Program, list[int]]:
    """Return what `send_program` sent, and the streams' descriptors here.

    Raises ConnectionError if the other end was killed before it had sent all.
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
    context: dict[str, Any] | None = None
    arguments = []
    for argument in sys.argv[1:]:
        if argument.startswith(_CONTEXT):
            context = json.loads(argument.removeprefix(_CONTEXT))
        elif argument != "-u" and not argument.startswith(_LANGUAGE):  # streams are unbuffered
            arguments.append(argument)
    variables = {} if context is None else context.get("env_vars", {})
    environment = {**os.environ, **variables}
    address = os.environ.get(SERVER_VARIABLE)
    if address is None:
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile() as said:
        connection.connect(address)
        send_program(connection, Program(arguments, environment, os.getcwd()))
        pid = int(said.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(said.readline() or -signal.SIGKILL)
    if code < 0:  # by a signal
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
