"""The answers of a run on disk, line by line, so that an interrupted run can continue.

The first line is the plan: which systems answer which questions. The others are answers in the
order of arrival. Every line is passed to the operating system before the next question: a killed
process loses only the answer in progress, and an incomplete last line is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeAlias

from diffuspec.bench.run import Record
from diffuspec.bench.systems.answer import Answer
from diffuspec.core.errors import ConfigError
from diffuspec.core.files import cut_torn_line
from diffuspec.core.types import StepStats

Plan: TypeAlias = Mapping[str, Any]  # JSON facts that must be the same when a run is resumed

_STEP_FIELDS = [field.name for field in fields(StepStats)]


class Journal:
    """Keeps the answers of one run in a file."""

    def __init__(self, path: Path, plan: Plan, resume: bool = False) -> None:
        """Begin a file or, to resume, read its answers and continue after them.

        Raises ConfigError if they belong to another plan.
        """
        self._path = path
        self._header = json.loads(json.dumps({**plan, "step_fields": _STEP_FIELDS}))
        self.records: dict[tuple[str, int, int, int], Record] = {}
        if resume and path.exists():
            self._read()
        else:
            path.write_text(_line(self._header), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Write an answer, unless it is already there."""
        if record.key not in self.records:
            self.records[record.key] = record
            self._file.write(_line(_to_json(record)))
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _read(self) -> None:
        data = self._path.read_bytes()
        header, *lines = data[: data.rfind(b"\n") + 1].decode().splitlines() or ["{}"]
        try:
            self._check(json.loads(header))
            for line in lines:
                record = _from_json(json.loads(line))
                self.records[record.key] = record
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"--resume: {self._path} is no journal of a run") from error
        with self._path.open("r+b") as file:
            cut_torn_line(file)

    def _check(self, found: dict[str, Any]) -> None:
        for key, value in self._header.items():
            if found.get(key) != value:
                raise ConfigError(
                    f"--resume: {self._path} is of a run that differs in {key.replace('_', ' ')}; "
                    "choose another --out, or leave out --resume to start over"
                )


def _line(data: object) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


def _to_json(record: Record) -> dict[str, Any]:
    answer = record.answer
    return {
        "system": record.system,
        "family": record.family,
        "question_id": record.question_id,
        "turn": record.turn,
        "repeat": record.repeat,
        "token_ids": answer.token_ids,
        "seconds": answer.seconds,
        "num_steps": answer.num_steps,
        "forward_seconds": answer.forward_seconds,
        "steps": [astuple(step) for step in answer.steps],
    }


def _from_json(data: dict[str, Any]) -> Record:
    steps = tuple(StepStats(*step) for step in data.pop("steps"))
    token_ids = tuple(data.pop("token_ids"))
    costs = {key: data.pop(key) for key in ("seconds", "num_steps", "forward_seconds")}
    return Record(**data, answer=Answer(token_ids, steps=steps, **costs))
