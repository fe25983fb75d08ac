"""The parts of a large input: byte ranges of JSONL files, row groups of Parquet files.

The plan depends only on the files, so a restarted run has the same parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.batches.inputs import Line, Source, digest_of, lines_between
from diffuspec.core.errors import ConfigError, MissingDependencyError

_JSONL, _PARQUET = SUFFIXES = (".jsonl", ".parquet")
_ENDS_BYTES = 65_536  # bytes at the beginning and end of each file, by which files are told apart


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of one file."""

    name: str  # name of its results file, without a suffix
    path: str
    start: int  # JSONL: first byte; Parquet: the row group
    end: int  # JSONL: the byte after the last one; Parquet: unused

    def source(self, salt: bytes) -> Source:
        """Return the rows of the part, counted from 1."""
        path = Path(self.path)
        if path.suffix == _PARQUET:
            return Source(self.name, lambda: _rows(path, self.start, salt, self.name))
        return Source(self.name, lambda: lines_between(path, salt, self.start, self.end, self.name))


@dataclass(frozen=True, slots=True)
class Plan:
    """All parts of an input, and a digest that identifies the input."""

    shards: tuple[Shard, ...]
    digest: str


def plan(input: Path, shard_bytes: int) -> Plan:
    """Return the parts of a file, or of a folder's JSONL and Parquet files in order of name.

    shard_bytes: length of a part of a JSONL file. Raises ConfigError.
    """
    files = input_files(input)
    hasher = hashlib.blake2b(str(shard_bytes).encode(), digest_size=16)
    shards: list[Shard] = []
    try:
        for number, path in enumerate(files):
            size = path.stat().st_size
            hasher.update(f"\0{path.name}\0{size}\0".encode())
            hasher.update(_ends(path, size))
            for place, (start, end) in enumerate(_ranges(path, size, shard_bytes)):
                name = f"part-{number:05d}-{place:06d}"
                shards.append(Shard(name, str(path.absolute()), start, end))
    except OSError as error:
        raise ConfigError(f"cannot read the input {error.filename}: {error.strerror}") from error
    return Plan(tuple(shards), hasher.hexdigest())


def input_files(input: Path) -> Sequence[Path]:
    """Return the files of an input in order. Raises ConfigError if there are none."""
    found = sorted(input.iterdir()) if input.is_dir() else [input]
    files = [path for path in found if path.suffix in SUFFIXES and path.is_file()]
    if not files:
        raise ConfigError(f"the input {input} must be, or hold, files that end in .jsonl, .parquet")
    return files


def check_dependencies() -> None:
    """Raise MissingDependencyError unless Ray Data can be used."""
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "--engine data needs pandas and pyarrow: pip install 'diffuspec[data]'"
        ) from error


def _ends(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        beginning = file.read(_ENDS_BYTES)
        file.seek(max(size - _ENDS_BYTES, 0))
        return beginning + file.read(_ENDS_BYTES)


def _ranges(path: Path, size: int, shard_bytes: int) -> Iterator[tuple[int, int]]:
    if path.suffix == _PARQUET:
        for group in range(_num_row_groups(path)):
            yield group, group + 1
    else:
        for start in range(0, size, shard_bytes):
            yield start, min(start + shard_bytes, size)


def _num_row_groups(path: Path) -> int:
    import pyarrow
    from pyarrow import parquet

    try:
        number: int = parquet.ParquetFile(path).num_row_groups
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"{path} is no Parquet file: {error}") from error
    return number


def _rows(path: Path, group: int, salt: bytes, part: str) -> Iterator[Line]:
    """Yield the rows of a row group as JSON lines: keys are column names, nulls are left out."""
    from pyarrow import parquet

    rows = parquet.ParquetFile(path).read_row_group(group).to_pylist()
    for number, row in enumerate(rows, start=1):
        given = {key: value for key, value in row.items() if value is not None}
        content = json.dumps(given, default=str).encode()
        yield Line(number, content, digest_of(salt, content), part=part)
