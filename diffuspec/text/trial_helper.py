"""The program that tries new forms of answers, each in a process forked for it.

    python -m diffuspec.text.trial_helper      with a socket as standard input

Native code compiles forms of unknown clients: it may crash, or take minutes or gigabytes. So it
runs in a child process for each form. The helper has a single thread, so that it can be forked at
any time. It ends when the other end of its standard input is closed, and ignores SIGINT and
SIGTERM, which are meant for the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import NoReturn

from tokenizers import Tokenizer

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.text.grammars import UNUSABLE, Grammars
from diffuspec.text.trial_messages import (
    LENGTH,
    READY,
    Setup,
    TrialLimits,
    Verdict,
    form_from_bytes,
)

_OUT_OF_MEMORY = 3  # exit statuses of a child without a verdict
_FAILED = 4
_UNREADY = 5  # it failed before it had a form
_ONE_BYTE = 1  # a core file of at most one byte: none, also where a program collects them
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_ANY_FORM = StructuredOutput(json_schema='{"properties": {"a": {"type": "number"}}}')
_LATE = Verdict("late", "it took too long by the clock")
_UNTRIED = Verdict("late", "the process that was to try it has failed")


@dataclass(frozen=True, slots=True, eq=False)
class _Child:
    """A forked process, which tries the form on the socket that it is sent."""

    pid: int
    link: socket.socket  # closed by the child when it exits


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A running trial."""

    child: _Child
    client: socket.socket  # hangs up if the client leaves
    deadline: float  # in seconds of time.monotonic()


class Helper:
    """The trials of one helper process.

    A child for the next trial is forked ahead, since that takes milliseconds, but not beside a
    trial, which it would slow down.
    """

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        """`control`: receives the sockets of trials. Reads the tokenizer, once for all trials."""
        self._control = control
        self._limits = setup.limits
        self._grammars = Grammars(lambda: Tokenizer.from_str(setup.tokenizer), setup.info)
        self._grammars.prepare()
        self._spare: _Child | None = None
        self._trials: list[_Trial] = []

    def run(self) -> None:
        """Try forms until the other end of `control` is closed. Its children end with it."""
        gc.freeze()  # memory of present objects stays shared with the children
        self._spare = self._fork()
        self._control.sendall(READY)
        while self._wait():
            if self._spare is None and not self._trials:
                self._spare = self._fork()

    def _wait(self) -> bool:
        """Wait for the next events, and react to them; return whether there is more to do."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for trial in self._trials:
            poll.register(trial.client, 0)  # hang-ups are always reported
            poll.register(trial.child.link, select.POLLIN)
        seconds = [trial.deadline - time.monotonic() for trial in self._trials]
        events = dict(poll.poll(max(0.0, 1000 * min(seconds)) if seconds else None))
        for trial in list(self._trials):
            if trial.child.link.fileno() in events:
                self._end(trial, is_over=True)
            elif trial.client.fileno() in events:
                self._end(trial)
            elif trial.deadline <= time.monotonic():
                self._end(trial, _LATE)
        return self._control.fileno() not in events or self._begin()

    def _begin(self) -> bool:
        """Begin the trial whose socket has arrived; return False if there will be no more."""
        _, received, _, _ = socket.recv_fds(self._control, 1, 1)
        if not received:
            return False
        client = socket.socket(fileno=received[0])
        child, self._spare = self._spare or self._fork(), None
        if child is None:
            _answer(client, _LATE)
            client.close()
            return True
        with contextlib.suppress(OSError):  # it has died: `_wait` sees the end of its link
            socket.send_fds(child.link, [READY], [client.fileno()])
        deadline = time.monotonic() + self._limits.wall_seconds
        self._trials.append(_Trial(child, client, deadline))
        return True

    def _fork(self) -> _Child | None:
        """Fork a child; return None if there is no memory, or too many processes."""
        helper = os.getpid()
        link, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            link.close()
            pid = -1
        if pid == 0:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != helper:  # the helper has ended already
                os._exit(_FAILED)
            link.close()
            self._serve(theirs)
        theirs.close()
        return _Child(pid, link) if pid > 0 else None

    def _end(self, trial: _Trial, verdict: Verdict | None = None, is_over: bool = False) -> None:
        """End a trial's child, and send the verdict; is_over: the child has exited."""
        if not is_over:
            os.kill(trial.child.pid, signal.SIGKILL)
        _, status = os.waitpid(trial.child.pid, 0)
        if is_over and status:
            verdict = _verdict_of(os.waitstatus_to_exitcode(status), self._limits)
        if verdict is not None:
            _answer(trial.client, verdict)
        trial.client.close()
        trial.child.link.close()
        self._trials.remove(trial)

    def _serve(self, link: socket.socket) -> NoReturn:
        """In the child: wait for a client, read its form, answer with the verdict, and exit."""
        code = _UNREADY
        try:
            self._control.close()
            for other in self._trials:
                other.client.close()
                other.child.link.close()
            self._grammars.admit(_ANY_FORM)  # allocates its memory before a client waits
            _limit(self._limits)
            [client] = socket.recv_fds(link, 1, 1)[1]
            code = _FAILED
            self._try(socket.socket(fileno=client))
            code = 0
        except MemoryError:
            code = _OUT_OF_MEMORY if code == _FAILED else _UNREADY
        finally:  # also after a panic of llguidance, which is no Exception
            os._exit(code)

    def _try(self, client: socket.socket) -> None:
        form = form_from_bytes(_read_frame(client))
        try:
            self._grammars.admit(form)
            verdict = Verdict("passed")
        except InvalidRequestError as error:
            verdict = Verdict("refused", str(error))
        client.sendall(verdict.to_bytes())


def _limit(limits: TrialLimits) -> None:
    """Limit this process, and discard its output, which may hold a user's text."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    with open("/proc/self/statm") as file:
        num_bytes = int(file.read().split()[0]) * resource.getpagesize()
    most = num_bytes + limits.num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (_ONE_BYTE, _ONE_BYTE))


def _verdict_of(code: int, limits: TrialLimits) -> Verdict:
    """Return the verdict on a form by a child's exit code, or minus the signal that killed it."""
    if code == _UNREADY:
        return _UNTRIED
    if code == -signal.SIGKILL:  # killed by the system, which is out of memory
        return _LATE
    if code == -signal.SIGXCPU:
        why = f"it is too complex: it takes more than {limits.cpu_seconds} s to compile and try"
    elif code in (_OUT_OF_MEMORY, -signal.SIGABRT):  # Rust aborts when it gets no memory
        size = limits.num_bytes // 2**20
        why = f"it is too complex: it takes more than {size} MiB of memory to compile and try"
    else:
        name = signal.Signals(-code).name if code < 0 else "an internal error"
        why = f"the library that compiles it fails ({name})"
    return Verdict("refused", f"{UNUSABLE}: {why}")


def _answer(client: socket.socket, verdict: Verdict) -> None:
    with contextlib.suppress(OSError):  # the client has left
        client.sendall(verdict.to_bytes())


def _read_frame(connection: socket.socket) -> bytes:
    [size] = LENGTH.unpack(_read(connection, LENGTH.size))
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the other side has gone")
        data += chunk
    return bytes(data)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=0)
    with contextlib.suppress(EOFError, OSError):  # the other side has gone
        Helper(control, Setup.from_bytes(_read_frame(control))).run()


if __name__ == "__main__":
    main()
