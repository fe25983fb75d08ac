"""A terminal: runs what is typed, one after the other; services run on in the background."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.first_day.place import Place
from benchmarks.first_day.typed import DEFAULT_PORT, Typed

_MAX_SECONDS = 900.0
_START_SECONDS = 300.0
_END_SECONDS = 120.0
_TAIL = 1500  # letters of an output
_STATE = Path("/tmp/state.sh")  # exported variables of the last command
_LOG = Path("/tmp/service.log")


class FailedError(Exception):
    """What was typed did not do what its page says."""


@dataclass(slots=True)
class _Service:
    typed: Typed
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(slots=True)
class Terminal:
    """A terminal in a place, with the variables and services that were left by what was typed."""

    place: Place
    _services: dict[int, _Service] = field(default_factory=dict)  # keys: ports
    _num_services: int = 0

    def __post_init__(self) -> None:
        _STATE.write_text("")

    def enter(self, typed: Typed) -> None:
        """Save a file, run a command or program, or start a service. Raises FailedError.

        A service that ran on the port of another is first stopped as by Ctrl-C. What needs a
        service gets `diffuspec serve` if none runs.
        """
        if typed.file is not None:
            (self.place.folder / typed.file).write_text(typed.text)
        elif typed.ready is not None:
            self._start(typed)
        else:
            if typed.needs_service and DEFAULT_PORT not in self._services:
                self._start(replace(typed, text="diffuspec serve"))
            self._run(self._command(typed))

    def close(self) -> None:
        """Stop all services. Raises FailedError."""
        for port in list(self._services):
            self._stop(port)

    def _command(self, typed: Typed) -> str:
        if not typed.is_program:
            return self.place.with_paths(typed.text)
        program = self.place.folder / f"program_{typed.block.line}.py"
        program.write_text(typed.text)
        return f"python {program.name}"

    def _run(self, command: str) -> None:
        script = f"source {_STATE}\n{command}\ncode=$?\ndeclare -px > {_STATE}\nexit $code"
        try:
            ran = subprocess.run(
                ("bash", "-c", script), **self._options(), capture_output=True, timeout=_MAX_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise FailedError(f"did not end within {_MAX_SECONDS:.0f} s") from error
        output = (ran.stdout + ran.stderr).decode(errors="replace")
        if ran.returncode != 0 or "Traceback (most recent" in output:
            raise FailedError(f"ended with {ran.returncode}: {output[-_TAIL:]}")
        if command.startswith("curl") and '"error"' in output:
            raise FailedError(output[-_TAIL:])
        if not output.strip() and not command.startswith(("export", "source")):
            raise FailedError("printed nothing")

    def _start(self, typed: Typed) -> None:
        self._stop(typed.port)
        self._num_services += 1
        log = _LOG.with_stem(f"service_{self.place.name}_{self._num_services}")
        script = f"source {_STATE}\nexec {self.place.with_paths(typed.text)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ("bash", "-c", script),
                **self._options(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._services[typed.port] = _Service(typed, process, log)
        assert typed.ready is not None
        ready = re.compile(typed.ready, re.MULTILINE)
        deadline = time.monotonic() + _START_SECONDS
        while not ready.search(log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise FailedError(f"does not start: {log.read_text(errors='replace')[-_TAIL:]}")
            time.sleep(0.2)

    def _stop(self, port: int) -> None:
        service = self._services.pop(port, None)
        if service is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(service.process.pid, signal.SIGINT)
        try:
            service.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired as error:
            os.killpg(service.process.pid, signal.SIGKILL)
            raise FailedError(f"{service.typed.text} did not end by Ctrl-C") from error
        if "Traceback (most recent" in (said := service.log.read_text(errors="replace")):
            raise FailedError(f"{service.typed.text} ended so: {said[-_TAIL:]}")

    def _options(self) -> dict[str, Any]:
        folder, env = self.place.folder, self.place.env()
        return {"cwd": folder, "env": env, "stdin": subprocess.DEVNULL}
