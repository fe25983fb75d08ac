"""Timelines of all roles and requests, as files for Perfetto and chrome://tracing.

There is a lane per role and one per running request, with complete events ("X") of the Trace Event
Format. Spans are given in seconds of time.monotonic(). The file is the format's plain array, which
viewers can read even if a killed process has left it without its end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from diffuspec.core.errors import ConfigError

logger = logging.getLogger(__name__)

Colour: TypeAlias = Literal["good", "bad", "terrible", "yellow", "grey"]
Argument: TypeAlias = str | int | float | None

MAX_EVENTS = 500_000
_NONE: Mapping[str, Argument] = {}
_FLUSH_SECONDS = 0.1  # most time that is lost if the process is killed


class Tracer:
    """Writes spans to a file as they are added; `close` completes the file.

    An existing file is overwritten. A role that restarts within a run uses another file, see
    `numbered`. Spans beyond max_events are dropped, and their number is written at the end. If the
    file can no longer be written (a full disk), only the trace ends. Raises ConfigError if the file
    cannot be opened.
    """

    def __init__(self, path: Path, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._num_events = 0
        self._num_dropped = 0
        self._origin = time.monotonic()
        self._flushed_at = self._origin
        self._lanes: dict[str, int] = {}
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write a trace to {path}: {error.strerror}") from error
        self._put("[\n")
        self._write({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "diffuspec"}})

    def span(
        self,
        lane: str,
        name: str,
        start: float,
        end: float,
        colour: Colour | None = None,
        arguments: Mapping[str, Argument] = _NONE,
    ) -> None:
        """Add a span from start to end. The spans of a lane must be nested or disjoint."""
        if self._file.closed:
            return
        if self._num_events >= self._max_events:
            self._num_dropped += 1
            return
        self._num_events += 1
        event: dict[str, object] = {"ph": "X", "pid": 1, "tid": self._lane(lane), "name": name}
        first, last = self._microseconds(start), self._microseconds(end)
        event |= {"ts": first, "dur": max(last - first, 0), "cat": name.split(":")[0]}
        if colour is not None:
            event["cname"] = colour
        given = {key: value for key, value in arguments.items() if value is not None}
        if given:
            event["args"] = given
        self._write(event)

    def close(self) -> None:
        """Write the number of dropped spans and the end of the file. May be called twice."""
        if self._file.closed:
            return
        told = {"num_events": self._num_events, "num_dropped_events": self._num_dropped}
        last = {"ph": "M", "pid": 1, "name": "trace_end", "args": told}
        self._put(json.dumps(last) + "\n]\n")
        with self._or_end():
            self._file.close()

    def _microseconds(self, moment: float) -> int:
        """Return whole microseconds, so that rounding does not make adjacent spans overlap."""
        return round(1e6 * (moment - self._origin))

    def _lane(self, name: str) -> int:
        if name not in self._lanes:
            lane = self._lanes[name] = len(self._lanes) + 1
            about = {"ph": "M", "pid": 1, "tid": lane}
            self._write(about | {"name": "thread_name", "args": {"name": name}})
            self._write(about | {"name": "thread_sort_index", "args": {"sort_index": lane}})
        return self._lanes[name]

    def _write(self, event: dict[str, object]) -> None:
        self._put(json.dumps(event) + ",\n")

    def _put(self, text: str) -> None:
        """Write, and flush if the last flush is _FLUSH_SECONDS ago."""
        if self._file.closed:
            return
        with self._or_end():
            self._file.write(text)
            if time.monotonic() > self._flushed_at + _FLUSH_SECONDS:
                self._file.flush()
                self._flushed_at = time.monotonic()

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """If the file fails, end the trace with a warning."""
        try:
            yield
        except OSError as error:
            logger.warning("the trace to %s ends here: %s", self._file.name, error)
            with contextlib.suppress(OSError):
                self._file.close()


def numbered(path: Path, number: int) -> Path:
    """Return the trace file of a numbered start: t.json for the first, t.2.json for the second."""
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")


@contextlib.contextmanager
def tracing(path: Path | None) -> Iterator[Tracer | None]:
    """Yield a tracer and close it at the end; None without a path. Raises ConfigError."""
    if path is None:
        yield None
        return
    with contextlib.closing(Tracer(path)) as tracer:
        yield tracer
