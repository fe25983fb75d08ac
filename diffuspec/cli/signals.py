"""The signals that end a command. Imports little, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

EXIT_INTERRUPTED = 128 + signal.SIGINT  # the convention of shells


def report_interrupt() -> None:
    """Print one line on stderr, below the ^C shown by a terminal."""
    newline = "\n" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{newline}interrupted\n")
    sys.stderr.flush()


def end_event() -> asyncio.Event:
    """Return an event set by SIGTERM and SIGINT. Call it in the command's event loop."""
    import asyncio

    end, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    return end
