"""Processes that answer lines of JSON, for engines in their own environments."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ConfigError


class JsonWorker:
    """A process that writes one object when it is ready, and one for each object that it reads."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self._name, self._process, self._log = name, process, log

    def wait_until_ready(self) -> None:
        """Wait for the first object. Raises ConfigError if the process has ended."""
        self._read()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request. Raises ConfigError if the process has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, which _read reports
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # engines may also print other lines
                found: dict[str, Any] = json.loads(line)
                return found
        code, log = self._process.wait(), self._log.read_text().strip()[-500:]
        raise ConfigError(f"{self._name} ended with exit code {code}: {log}")


@contextmanager
def started(
    name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[JsonWorker]:
    """Start a process, and kill it at the end. Raises ConfigError if it fails to start.

    environment: variables in addition to our own; log: file for its stderr.
    """
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, **environment},
        )
        try:
            worker = JsonWorker(name, process, log)
            worker.wait_until_ready()
            yield worker
        finally:
            process.kill()
            process.communicate()
