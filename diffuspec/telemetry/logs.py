"""Logs of services, as text or as one JSON object per line: configured only here.

A line about a request has the client's request id, from the context or from `about`. No line
contains users' texts or answers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, Literal, TypeAlias, get_args

from diffuspec.core.errors import ConfigError
from diffuspec.telemetry import context

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

# What takes more than a second, as it begins: shown by commands on a terminal, by services in logs.
stages = logging.getLogger("diffuspec.stages")

FORMAT_VARIABLE = "DIFFUSPEC_LOG_FORMAT"
LEVEL_VARIABLE = "DIFFUSPEC_LOG_LEVEL"
# warnings only: their info repeats our own lines, or is of no use to operators
_QUIET = ("uvicorn", "httpx", "httpcore", "asyncio", "torch")


def configure(form: LogFormat | None = None, level: LogLevel = "info") -> None:
    """Send the lines of all packages from `level` up to stderr.

    Without `form`, DIFFUSPEC_LOG_FORMAT or else text is used. DIFFUSPEC_LOG_LEVEL overrides
    `level`. Raises ConfigError for an invalid value of these variables.
    """
    form = form or _variable(FORMAT_VARIABLE, get_args(LogFormat), "text")
    lowest = _variable(LEVEL_VARIABLE, get_args(LogLevel), level).upper()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    for other in [*root.handlers]:
        if isinstance(other.formatter, JsonLines | TextLines):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(lowest)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))


def about(request_id: str, traceparent: str = "") -> dict[str, str]:
    """Return the `extra` fields of a log line about a request other than the context's."""
    return {"request_id": request_id, "traceparent": traceparent}


class JsonLines(logging.Formatter):
    """JSON objects: time (UTC), level, logger, message; request_id, trace_id, error if set."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{_utc(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := _request_id(record):
            line["request_id"] = request_id
        if traceparent := getattr(record, "traceparent", context.traceparent.get()):
            line["trace_id"] = traceparent.split("-")[1]
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """TIME LEVEL LOGGER [REQUEST_ID] MESSAGE, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        request_id = _request_id(record)
        parts = [
            f"{_utc(record, '%H:%M:%S')}.{int(record.msecs):03}",
            record.levelname,
            record.name,
            *([f"[{request_id}]"] if request_id else []),
            " ".join(record.getMessage().splitlines()),
        ]
        line = " ".join(parts)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _utc(record: logging.LogRecord, form: str) -> str:
    return time.strftime(form, time.gmtime(record.created))


def _request_id(record: logging.LogRecord) -> str:
    given: str = getattr(record, "request_id", "")
    return given or context.request_id.get()


def _variable(name: str, allowed: tuple[Any, ...], default: str) -> Any:
    """Return the value of an environment variable. Raises ConfigError."""
    value = os.environ.get(name, "").lower() or default
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r:.80}")
    return value
