"""A small process that ends all that a command has started, however the command ends.

Everything below the command has a mark in its environment. When the command is gone, also by
SIGKILL, the guardian kills each process that was started with the mark, then removes the command's
temporary directories. It finds processes in /proc, so it is of use on Linux alone.

It runs this file with nothing but the standard library: python -I -S guardian.py MARK DIRECTORY...
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "DIFFUSPEC_OWNER"  # the variable of an environment that holds the mark

_POLL_SECONDS = 1.0  # pause between two looks at all processes
_KILL_SECONDS = 10.0  # time until processes that were killed have ended
_PAUSE_SECONDS = 0.05


@contextlib.contextmanager
def guarded(*directories: Path) -> Iterator[None]:
    """Have processes that start in this context end with it, or with this process.

    The directories are removed then.
    """
    before, mark = os.environ.get(VARIABLE), secrets.token_hex(8)
    process = _start(mark, directories)
    os.environ[VARIABLE] = mark
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * _KILL_SECONDS)


class Marked:
    """The processes that were started with a mark.

    Those that were seen once are remembered: Ray's agents overwrite their environment at the end.
    """

    def __init__(self, mark: str) -> None:
        self._variable = f"{VARIABLE}={mark}".encode()
        self._seen: dict[int, tuple[bytes, bool]] = {}  # ids: the time of the start, has the mark

    def running(self) -> list[int]:
        """Return their ids."""
        known, self._seen = self._seen, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # another user's, or it has ended
                pid, started = int(folder.name), _start_time(folder)
                found = known.get(pid)
                if found is None or found[0] != started or not found[1]:
                    found = started, self._has_mark(folder)
                self._seen[pid] = found
        return [pid for pid, (_, has_mark) in self._seen.items() if has_mark]

    def _has_mark(self, folder: Path) -> bool:
        return self._variable in (folder / "environ").read_bytes().split(b"\0")


def _start_time(folder: Path) -> bytes:
    """Return the start time of a process, which tells it from a later one with the same id."""
    state, *fields = (folder / "stat").read_bytes().rpartition(b") ")[2].split()
    if state == b"Z":
        raise ProcessLookupError(folder.name)
    return fields[18]


def _start(mark: str, directories: tuple[Path, ...]) -> subprocess.Popen[bytes]:
    """Start a guardian of this process, in a session that no terminal interrupts."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark, *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
    )


def _watch_until_the_end_of(parent: int, processes: Marked) -> None:
    """Return when the pipe to this process is closed, or when it has another parent."""
    while os.getppid() == parent:
        processes.running()
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            return


def _kill_all(processes: Marked) -> None:
    """Kill the processes, and those that they start meanwhile."""
    ends_at = time.monotonic() + _KILL_SECONDS
    while (found := processes.running()) and time.monotonic() < ends_at:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def main(mark: str, *directories: str) -> None:
    processes = Marked(mark)
    _watch_until_the_end_of(os.getppid(), processes)
    _kill_all(processes)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
