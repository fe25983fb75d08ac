"""The fork server of the tests: see deploy/fork_server.py.

The tests start a hundred processes of roles. A worker of pytest-xdist is forked too, with a server
of its own, so that the processes of its tests are below it.

    python -m tests.support.fork_server LISTENER MODULE...    serve until standard input ends
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import ModuleType

from deploy.fork_server import MODULES, ForkServer, run_program
from deploy.forked import SERVER_VARIABLE, Program


@contextlib.contextmanager
def fork_server(modules: Sequence[str] = MODULES) -> Iterator[None]:
    """Run a server that processes started in this context find. Imports when it is first asked."""
    with tempfile.TemporaryDirectory(prefix="fork") as folder:
        address = os.path.join(folder, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            command = [sys.executable, "-m", __name__, str(listener.fileno()), *modules]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        os.environ[SERVER_VARIABLE] = address
        try:
            yield
        finally:
            os.environ.pop(SERVER_VARIABLE, None)
            process.communicate()


def run(program: Program) -> None:
    """Run a program in this process; code of execnet, a worker's, with a server of its own."""
    if program.arguments[0] != "-c":
        run_program(program)
        return
    _fork_own_server()
    code_of_worker = sys.argv.pop(1)
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    exec(code_of_worker, vars(main_module))


def _fork_own_server() -> None:
    """Fork a server that ends with this process; processes that this one starts find it."""
    folder = tempfile.mkdtemp(prefix="fork")
    os.environ[SERVER_VARIABLE] = os.path.join(folder, "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[SERVER_VARIABLE])
    listener.listen(64)
    end, _ = ends = os.pipe()  # the other one is closed when this process ends
    if os.fork():
        listener.close()
        os.close(end)
        return
    os.dup2(end, 0)
    os.dup2(2, 1)  # the standard output belongs to execnet
    for descriptor in ends:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ForkServer(listener, MODULES, run).serve()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        ForkServer(listener, sys.argv[2:], run).serve()


if __name__ == "__main__":
    main()
