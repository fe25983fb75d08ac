"""The input of a batch, read line by line: it may be larger than memory.

It is read twice: `scan` counts the rows and refuses duplicate custom_ids before any work, then
`read` yields the rows to answer. 16 bytes are kept for each line.
"""

from __future__ import annotations

import codecs
import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from socket import gethostname
from typing import BinaryIO

import numpy as np

from deploy.batches.kinds import other_kind
from deploy.batches.rows import custom_id_of
from diffuspec.core.errors import ConfigError

MAX_LINE_BYTES = 4 * 2**20
MAX_LINES = 10_000_000

_CHUNK_BYTES = 2**20
_BOM = codecs.BOM_UTF8


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank."""

    number: int  # counted from 1
    content: bytes  # the line without its newline; only its beginning if it is too long
    digest: int  # 64 bits, not 0: hash of the line and of the options that affect its answer
    is_too_long: bool = False
    part: str = ""  # the part of the input that it is in, if there are several

    @property
    def custom_id(self) -> str:
        """The id of the line's result; see `custom_id_of`."""
        place = f"line-{self.number}"
        return custom_id_of(self.content, f"{self.part}-{place}" if self.part else place)


@dataclass(frozen=True, slots=True)
class Source:
    """A source of lines; each call of `lines` starts again at the first."""

    name: str
    lines: Callable[[], Iterator[Line]]


@dataclass(frozen=True, slots=True)
class Index:
    """The digests of a source's lines, by which they are recognised."""

    digests: Sequence[int]  # by line number; 0 for blank lines and for number 0
    num_rows: int

    def has(self, number: int, digest: int) -> bool:
        return number < len(self.digests) and self.digests[number] == digest


def jsonl_file(path: Path, salt: bytes = b"") -> Source:
    """Return the lines of a file.

    salt: the options that affect answers, so that results made with other options are recognised.
    """
    return Source(str(path), lambda: lines_between(path, salt))


def scan(source: Source, *, may_be_empty: bool = False) -> Index:
    """Read a whole source. Raises ConfigError if it is unreadable, empty, too long or ambiguous."""
    digests, ids = array("Q", [0]), array("Q", [0])
    num_rows = 0
    for line in source.lines():
        if line.number > MAX_LINES:
            raise ConfigError(
                f"{source.name} has more than {MAX_LINES} lines; --engine data takes more"
            )
        blank = [0] * (line.number - len(digests))
        digests.extend([*blank, line.digest])
        ids.extend([*blank, digest_of(b"", line.custom_id.encode("utf-8", "replace"))])
        num_rows += 1
    if not num_rows and not may_be_empty:
        raise ConfigError(f"{source.name} holds no rows")
    _refuse_duplicates(source, ids)
    return Index(digests, num_rows)


def read(
    source: Source, index: Index, done: Sequence[int], limit: int | None = None
) -> Iterator[Line]:
    """Yield the lines that are not done among the first `limit` rows (None: all rows).

    Raises ConfigError if the source has changed.
    """
    for line in islice(source.lines(), limit):
        if not index.has(line.number, line.digest):
            raise ConfigError(f"{source.name}, line {line.number} changed while the batch ran")
        if not done[line.number]:
            yield line


def digest_of(salt: bytes, content: bytes) -> int:
    """Return a 64-bit hash of the content, never 0."""
    return _number(_hasher(salt, content))


def lines_between(
    path: Path, salt: bytes, start: int = 0, end: int | None = None, part: str = ""
) -> Iterator[Line]:
    """Yield the lines of a file that begin at a byte from `start` to before `end`.

    They are counted from 1. Raises ConfigError.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(
                f"the input must be a file, which is read twice; {path} is a folder or a device"
            )
        with path.open("rb") as file:
            _seek_line(file, start)
            number = 0
            while (end is None or file.tell() < end) and (
                head := file.readline(MAX_LINE_BYTES + 1)
            ):
                number += 1
                is_first = start == 0 and number == 1
                if is_first and (kind := other_kind(head)):
                    raise ConfigError(f"{path} is {kind}; the input must be JSON lines in UTF-8")
                content = (head.removeprefix(_BOM) if is_first else head).strip()
                hasher = _hasher(salt, content)
                is_too_long = _skip_rest(file, head, hasher)
                if content:
                    yield Line(number, content, _number(hasher), is_too_long, part)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot read the input {path} on {gethostname()}: {reason}") from error


def _seek_line(file: BinaryIO, start: int) -> None:
    """Seek the first line that begins at `start` or later."""
    if start:
        file.seek(start - 1)
        while part := file.readline(_CHUNK_BYTES):
            if part.endswith(b"\n"):
                return


def _skip_rest(file: BinaryIO, head: bytes, hasher: hashlib.blake2b) -> bool:
    """Read on to the end of a line that began with `head`; return whether it is too long."""
    if head.endswith(b"\n") or len(head) <= MAX_LINE_BYTES:
        return False
    while part := file.readline(_CHUNK_BYTES):
        hasher.update(part)
        if part.endswith(b"\n"):
            break
    return True


def _hasher(salt: bytes, content: bytes) -> hashlib.blake2b:
    hasher = hashlib.blake2b(salt, digest_size=8)
    hasher.update(b"\0" + content)
    return hasher


def _number(hasher: hashlib.blake2b) -> int:
    return int.from_bytes(hasher.digest()) or 1


def _refuse_duplicates(source: Source, ids: Sequence[int]) -> None:
    """Raise ConfigError naming the first two lines with the same custom_id."""
    values = np.asarray(ids, np.uint64)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    repeated = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != 0))
    for place in repeated[np.argsort(order[repeated + 1])]:
        first, second = int(order[place]), int(order[place + 1])
        names = {
            line.number: line.custom_id for line in source.lines() if line.number in (first, second)
        }
        if names[first] == names[second]:  # the ids themselves are equal, not just their hashes
            raise ConfigError(
                f"{source.name}, line {second}: custom_id {names[second]!r:.80} was used in line "
                f"{first} already"
            )
