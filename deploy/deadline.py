"""Ends a command after a time: a call of Ray may never return once the cluster is lost."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from diffuspec.cli.command import EXIT_FAILURE


@contextlib.contextmanager
def ended_within(seconds: float, what: str) -> Iterator[None]:
    """End this process with an error if the block takes longer."""
    message = f"{what} has taken {seconds:g} seconds: this command ends without it"
    timer = threading.Timer(seconds, _fail, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def report(message: str) -> None:
    """Print an error as commands do."""
    sys.stderr.write(f"error: {message}\n")


def end() -> NoReturn:
    """End this process at once, from any thread, as a command that has failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_FAILURE)


def _fail(message: str) -> NoReturn:
    report(message)
    end()
