"""Forks the processes that tests start from one that has already imported torch and the roles.

The imports take about four seconds of processor time. A forked process has one thread, and the
arguments, standard streams, environment and working folder of the process that requested it:
tests/support/forked.py, run from the command line. All forked processes share the imported modules'
memory. A worker of pytest-xdist is forked too, with a server of its own, so that the processes of
its tests are below it.

    python -m tests.support.fork_server LISTENER MODULE...    serve until standard input ends
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

from tests.support.forked import SERVER_VARIABLE, Program, receive_program

# Ray is missing because it reads its settings on import and keeps threads; pyarrow and pydantic.v1
# are what it imports.
LIBRARIES = (
    *("torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto"),
    *("transformers.models.qwen2.modeling_qwen2", "pyarrow", "pydantic.v1"),
    *("fastapi", "grpc.aio", "uvicorn", "uvloop"),
    *("click", "jsonschema", "msgpack", "opentelemetry.sdk.trace", "requests"),
)
MODULES = (
    *LIBRARIES,
    "actors.roles.coordinator",
    "actors.roles.drafter",
    "actors.roles.path_scorer",
    "actors.roles.verifier",
    "diffuspec.models.diffusion",
    "diffuspec.models.tensor_parallel.lockstep",
    "diffuspec.models.target",
    "diffuspec.serve.app",
)
_BACKLOG = 64


@contextlib.contextmanager
def fork_server(modules: Sequence[str] = MODULES) -> Iterator[None]:
    """Run a server that processes started in this context find. Imports when it is first asked."""
    with tempfile.TemporaryDirectory(prefix="fork") as folder:
        address = os.path.join(folder, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(_BACKLOG)
            command = [sys.executable, "-m", __name__, str(listener.fileno()), *modules]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        os.environ[SERVER_VARIABLE] = address
        try:
            yield
        finally:
            os.environ.pop(SERVER_VARIABLE, None)
            process.communicate()


class ForkServer:
    """Forks one child for each connection. When either ends, so does the other.

    modules: imported before the first child.
    """

    def __init__(self, listener: socket.socket, modules: Sequence[str]) -> None:
        self._listener, self._modules = listener, modules
        self._selector = selectors.DefaultSelector()
        self._pids: set[int] = set()

    def serve(self) -> None:
        """Serve until standard input ends, then kill the children."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._kill_all()
                    return
                if key.fd in self._selector.get_map():  # not removed by an earlier event
                    key.data()

    def _kill_all(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)

    def import_modules(self) -> None:
        """Import the modules that are not imported yet; skip those that are not installed."""
        modules, self._modules = self._modules, ()
        for name in modules:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
        if modules:
            gc.collect()
            gc.freeze()  # keeps pages shared with the children
            assert threading.active_count() == 1

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            program, streams = receive_program(client)
        except OSError:  # the requesting process was killed
            client.close()
            return
        self.import_modules()
        pid = os.fork()
        if not pid:
            self._selector.close()
            self._listener.close()
            client.close()
            _become(program, streams)
        for stream in streams:
            os.close(stream)
        self._pids.add(pid)
        with contextlib.suppress(OSError):
            client.sendall(b"%d\n" % pid)
        ended = os.pidfd_open(pid)

        def kill() -> None:
            self._selector.unregister(client)
            os.kill(pid, signal.SIGKILL)

        def reap() -> None:
            self._selector.unregister(ended)
            os.close(ended)
            self._pids.remove(pid)
            _, status = os.waitpid(pid, 0)
            if client.fileno() in self._selector.get_map():
                self._selector.unregister(client)
            with client, contextlib.suppress(OSError):  # the requesting process may be gone
                client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))

        self._selector.register(ended, selectors.EVENT_READ, reap)
        self._selector.register(client, selectors.EVENT_READ, kill)


def _become(program: Program, streams: Sequence[int]) -> NoReturn:
    """Run a program in this child process, then exit."""
    code: Any = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if program.leads_group:
            os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(program.environment)
        _set_num_threads()
        os.chdir(program.folder)
        sys.argv = list(program.arguments)
        _run(program)
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _set_num_threads() -> None:
    """Apply OMP_NUM_THREADS, which OpenMP read earlier, when torch was imported."""
    torch, number = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and number.isdecimal() and int(number):
        torch.set_num_threads(int(number))


def _run(program: Program) -> None:
    """Run a program in this process, as Python does; code of execnet with a server of its own."""
    if program.arguments[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    if program.arguments[0] != "-c":
        runpy.run_path(sys.argv[0], run_name="__main__")
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
    listener.listen(_BACKLOG)
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
    ForkServer(listener, MODULES).serve()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        ForkServer(listener, sys.argv[2:]).serve()


if __name__ == "__main__":
    main()
