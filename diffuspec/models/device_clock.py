"""DeviceClock: how long a device has computed, measured without waiting for it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch


class DeviceClock:
    """Adds up the seconds of what is launched while it is running."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._events: deque[tuple[Any, Any]] = deque()  # not added yet

    @property
    def seconds(self) -> float:
        """The seconds so far, once everything launched has been computed."""
        while self._events:
            self._add_first()
        return self._seconds

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what is launched on the device, or computed on a CPU, within the context."""
        if self._device.type == "cpu":
            started = time.monotonic()
            yield
            self._seconds += time.monotonic() - started
            return
        begin, end = _event(), _event()
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))
        while self._events and self._events[0][1].query():
            self._add_first()

    def _add_first(self) -> None:
        begin, end = self._events.popleft()
        end.synchronize()
        self._seconds += begin.elapsed_time(end) / 1000


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
