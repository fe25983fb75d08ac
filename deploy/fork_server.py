"""Forks processes from one that has already imported torch and the roles.

The imports take about four seconds of processor time. A forked process has one thread, and the
arguments, standard streams, environment and working folder of the process that requested it:
deploy/forked.py, run from the command line. All forked processes share the imported modules'
memory.

    python -m deploy.fork_server SOCKET MODULE...    serve until standard input ends
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from deploy.forked import SERVER_VARIABLE, Program, receive_program

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
_END_SECONDS = 5.0


@contextlib.contextmanager
def fork_server(modules: Sequence[str] = MODULES) -> Iterator[None]:
    """Run a server for processes started in this context; it is ready after the imports.

    It ends with this context or this process, together with all processes that it has forked.
    Inside another server's context, that server is used.
    """
    if SERVER_VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fork", ignore_cleanup_errors=True) as folder:
        address = os.path.join(folder, "socket")
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, address, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the command, which ends the roles in order
        )
        os.environ[SERVER_VARIABLE] = address
        try:
            yield
        finally:
            os.environ.pop(SERVER_VARIABLE, None)
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:  # the server is still importing
                process.kill()
                process.wait()


class ForkServer:
    """Forks one child for each connection. When either ends, so does the other.

    modules: imported before the first child, at the latest.
    run: runs a program in a child.
    """

    def __init__(
        self,
        listener: socket.socket,
        modules: Sequence[str],
        run: Callable[[Program], None] | None = None,
    ) -> None:
        self._listener, self._modules = listener, modules
        self._run = run or run_program
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
            _become(program, streams, self._run)
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


def run_program(program: Program) -> None:
    """Run a program in this process, as the Python interpreter does."""
    if program.arguments[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _become(program: Program, streams: Sequence[int], run: Callable[[Program], None]) -> NoReturn:
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
        run(program)
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


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        server = ForkServer(listener, sys.argv[2:])
        server.import_modules()
        listener.bind(sys.argv[1])
        listener.listen(_BACKLOG)
        server.serve()


if __name__ == "__main__":
    main()
