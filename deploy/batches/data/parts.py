"""The output folder of a large batch: a file of results for each part, and a mark when it is whole.

part-00000-000003.jsonl            results, or .parquet
part-00000-000003.jsonl.partial    results so far, of a part in work or left by a kill
_done/part-00000-000003.json       the figures of a part that is whole
_done/_batch.json                  which input and options the folder belongs to
_done/_lock                        locked by the batch that is at work on the folder
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deploy.batches.outputs import locked
from deploy.batches.summary import Tally
from diffuspec.core.errors import ConfigError

Format: TypeAlias = Literal["jsonl", "parquet"]

_DONE = "_done"
_BATCH = "_batch.json"
_LOCK = "_lock"


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of an output folder that all nodes share."""

    folder: Path
    format: Format

    @contextlib.contextmanager
    def claimed(self, batch: Mapping[str, str]) -> Iterator[None]:
        """Create the folder, and lock it against other processes within the block.

        Raises ConfigError if it is in use, or belongs to another batch.
        """
        done = self.folder / _DONE
        try:
            done.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write the output {error.filename}: {error.strerror}") from (
                error
            )
        with locked(done / _LOCK, self.folder):
            self._check_owner(done / _BATCH, batch)
            yield

    def _check_owner(self, mark: Path, batch: Mapping[str, str]) -> None:
        try:
            if not mark.exists():
                _write_whole(mark, json.dumps(batch).encode())
            found = json.loads(mark.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot write the output {error.filename}: {error.strerror}") from (
                error
            )
        if found != batch:
            wrong = next(key for key in batch if found.get(key) != batch[key])
            raise ConfigError(
                f"{self.folder} has results of another batch: its {wrong} was not the same; give "
                "another --output"
            )

    def partial(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl.partial"

    def done(self, name: str) -> Tally | None:
        """Return the statistics of a complete part, None for any other."""
        try:
            return Tally(**json.loads(self._mark(name).read_bytes()))
        except FileNotFoundError:
            return None

    def finish(self, name: str, tally: Tally) -> None:
        """Give a part its final name and format, then its mark."""
        partial, whole = self.partial(name), self.folder / f"{name}.{self.format}"
        if self.format == "jsonl":
            os.replace(partial, whole)
        else:
            _write_parquet(partial, whole)
        _write_whole(self._mark(name), json.dumps(asdict(tally)).encode())
        partial.unlink(missing_ok=True)

    def _mark(self, name: str) -> Path:
        return self.folder / _DONE / f"{name}.json"


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _write_parquet(partial: Path, whole: Path) -> None:
    """Write results as Parquet; response and error are columns of JSON text."""
    import pyarrow
    from pyarrow import parquet

    with partial.open("rb") as file:
        rows = [_columns(json.loads(line)) for line in file]
    names = ("id", "custom_id", "status_code", "response", "error")
    kinds = {name: pyarrow.string() for name in names} | {"status_code": pyarrow.int32()}
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema(list(kinds.items())))
    beside = whole.with_name(f"{whole.name}.new")
    parquet.write_table(table, beside)
    os.replace(beside, whole)


def _columns(result: Mapping[str, Any]) -> dict[str, Any]:
    response, error = result["response"], result["error"]
    return {
        "id": result["id"],
        "custom_id": result["custom_id"],
        "status_code": None if response is None else response["status_code"],
        "response": None if response is None else json.dumps(response, ensure_ascii=False),
        "error": None if error is None else json.dumps(error, ensure_ascii=False),
    }
