"""Watches the parts of a command's Ray cluster that are never restarted: the raylet and the GCS.

Once one of them is lost, calls of Ray may never return, and Ray replaces no actors. So the command
exits with an error, and its process manager can start it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import ray

from deploy.guardian import VARIABLE, Marked
from diffuspec.cli.command import EXIT_FAILURE

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 15.0  # time for answers in progress, which need neither part
_VITAL = {"raylet": "raylet", "gcs_server": "GCS"}  # Ray's process names, and the usual names


@contextlib.contextmanager
def ended_within(seconds: float, what: str) -> Iterator[None]:
    """Kill this process with an error if the block takes longer."""
    message = f"{what} has taken {seconds:g} seconds: this command ends without it"
    timer = threading.Timer(seconds, _fail, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def report(message: str) -> None:
    """Print an error in the format of commands."""
    sys.stderr.write(f"error: {message}\n")


def end() -> NoReturn:
    """End this process at once, from any thread, with the exit code of a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_FAILURE)


def _fail(message: str) -> NoReturn:
    report(message)
    end()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """End this process if a part of its cluster is lost before the context ends."""
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=[is_over], name="cluster watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()


def _watch(is_over: threading.Event) -> None:
    while not is_over.wait(_POLL_SECONDS):
        if lost := _lost_part():
            report(f"{lost}: this command has lost its Ray cluster; start it again")
            _drain()
            end()


def _lost_part() -> str:
    """Return which part has ended, and how; "" while the cluster is complete."""
    node: Any = ray._private.worker._global_node
    for kind, process in node.dead_processes():
        if kind in _VITAL:
            code = process.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return f"Ray's {_VITAL[kind]} has ended ({how})"
    return ""


def _drain() -> None:
    """Make HAProxy accept no more connections, and wait for the answers that it passes on."""
    ends_at = time.monotonic() + _GRACE_SECONDS
    for pid in _proxies():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    while _proxies() and time.monotonic() < ends_at:
        time.sleep(_POLL_SECONDS)


def _proxies() -> list[int]:
    """Return the ids of this command's HAProxy processes."""
    found = []
    for pid in Marked(os.environ[VARIABLE]).running():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "haproxy":
                found.append(pid)
    return found
