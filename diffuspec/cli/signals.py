"""The signals that end a command which serves."""

from __future__ import annotations

import asyncio
import signal


def end_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set. Call it in the event loop of the command."""
    end, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    return end
