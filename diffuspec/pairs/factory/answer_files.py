"""Files of answers in one folder, small enough to carry, written in rounds that can be cut off."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from diffuspec.core.errors import ConfigError
from diffuspec.core.files import replace_text

MAX_FILE_BYTES = 16_000_000
PATTERN = "answers-*.jsonl"
_PROGRESS = "progress.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """What is complete; everything after it is written again."""

    round_size: int  # prompts of a round
    num_rounds: int = 0
    num_answers: int = 0
    num_files: int = 0
    num_bytes: int = 0  # size of the last file


class AnswerFiles:
    """The files of a folder, `answers-00001.jsonl` and so on."""

    def __init__(self, folder: Path, round_size: int) -> None:
        """Take up what a process has left, up to its last whole round. Raises ConfigError.

        round_size: for a new folder; an existing one keeps its own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.progress = self._read_progress(round_size)
        self._write_progress()  # files of a first round that is cut off are known by it
        self._drop_unfinished()

    def add_round(self, lines: Iterable[str]) -> None:
        """Append the answers of a round, which counts once all are written."""
        done = self.progress
        number, size, count = done.num_files, done.num_bytes, 0
        file = self._path(number).open("ab") if number else None
        try:
            for line in lines:
                encoded = line.encode()
                if file is None or size + len(encoded) > MAX_FILE_BYTES:
                    if file is not None:
                        file.close()
                    number, size = number + 1, 0
                    file = self._path(number).open("wb")
                file.write(encoded)
                size, count = size + len(encoded), count + 1
        finally:
            if file is not None:
                file.close()
        self.progress = Progress(
            done.round_size, done.num_rounds + 1, done.num_answers + count, number, size
        )
        self._write_progress()

    def _path(self, number: int) -> Path:
        return self._folder / f"answers-{number:05d}.jsonl"

    def _read_progress(self, round_size: int) -> Progress:
        path = self._folder / _PROGRESS
        if path.exists():
            return Progress(**json.loads(path.read_text()))
        if found := next(self._folder.glob(PATTERN), None):
            raise ConfigError(f"{found} exists without {path}: name another folder")
        return Progress(round_size)

    def _write_progress(self) -> None:
        replace_text(self._folder / _PROGRESS, json.dumps(asdict(self.progress)))

    def _drop_unfinished(self) -> None:
        done = self.progress
        number = done.num_files + 1
        while (path := self._path(number)).exists():
            path.unlink()
            number += 1
        if done.num_files:
            with self._path(done.num_files).open("r+b") as file:
                file.truncate(done.num_bytes)
