"""A small process that ends everything a command has started, however the command ends.

All descendants of the command have a mark in their environment. When the command is gone, even by
SIGKILL, the guardian kills each process that was started with the mark, then removes the command's
temporary directories. It finds processes in /proc, so it works only on Linux.

It runs this file with only the standard library: python -I -S guardian.py MARK DIRECTORY...
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

VARIABLE = "DIFFUSPEC_OWNER"  # the environment variable that holds the mark

_POLL_SECONDS = 1.0  # pause between two scans of all processes
_KILL_SECONDS = 10.0  # time for killed processes to end
_PAUSE_SECONDS = 0.05


@contextlib.contextmanager
def guarded(*directories: Path) -> Iterator[None]:
    """End the processes started in this context when it ends, or when this process ends.

    Then remove the directories.
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

    Processes seen once are remembered, since Ray's agents overwrite their environment at the end.
    """

    def __init__(self, mark: str) -> None:
        self._variable = f"{VARIABLE}={mark}".encode()
        # by process id: its start time, and whether it has the mark
        self._seen: dict[int, tuple[bytes, bool]] = {}

    def running(self) -> list[int]:
        """Return the ids of the running ones."""
        known, self._seen = self._seen, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it belongs to another user, or has ended
                pid, started = int(folder.name), _start_time(folder)
                found = known.get(pid)
                if found is None or found[0] != started or not found[1]:
                    found = started, self._has_mark(folder)
                self._seen[pid] = found
        return [pid for pid, (_, has_mark) in self._seen.items() if has_mark]

    def _has_mark(self, folder: Path) -> bool:
        return self._variable in (folder / "environ").read_bytes().split(b"\0")


def _start_time(folder: Path) -> bytes:
    """Return a process's start time, which distinguishes it from a later one with the same id."""
    state, *fields = (folder / "stat").read_bytes().rpartition(b") ")[2].split()
    if state == b"Z":
        raise ProcessLookupError(folder.name)
    return fields[18]


def _start(mark: str, directories: tuple[Path, ...]) -> subprocess.Popen[bytes]:
    """Start a guardian of this process in its own session, which no terminal interrupts."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark, *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
    )


def _watch_until_the_end_of(parent: int, processes: Marked) -> None:
    """Return when the pipe to this process is closed, or when its parent has changed."""
    while os.getppid() == parent:
        processes.running()
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            return


def _kill_all(processes: Marked) -> None:
    """Kill the processes, including those that they start meanwhile."""
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
