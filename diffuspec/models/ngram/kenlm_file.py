"""KenLM's files: what their heads say, and conversion from ARPA to binary.

The checks find files of another format, truncated files and headers out of bounds. Changed bytes in
the middle of a file are found by the checksum that we write beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from diffuspec.core.errors import MissingDependencyError, NgramError
from diffuspec.models.ngram.checksum import check, publish

MIN_ORDER, MAX_ORDER = 2, 6  # those of KenLM, which has no unigram models

_BINARY_MAGIC = b"mmap lm http://kheafield.com/code"
# KenLM's `Sanity`: magic, then values that differ with another byte order or word size.
_SANITY = struct.pack(
    "<56s3f3IQ",
    _BINARY_MAGIC + b" format version 5\n",
    *(0.0, 1.0, -0.5),
    *(1, 0xFFFFFFFF, 0),
    1,
)
# KenLM's `FixedWidthParameters`: order, probing multiplier, model type, has vocabulary, version.
_PARAMETERS = struct.Struct("<B3xfI?3xI")
_MAX_LINE_BYTES = 4096
# the shortest ARPA line: one digit of probability, a tab, a word, a newline
_MIN_BYTES_PER_NGRAM = 4
_COUNT_LINE = re.compile(rb"ngram (\d+)=(\d{1,18})\s*")
_EXPECTED = (
    "expected an ARPA file (its first line is \\data\\) or a binary made from one by KenLM's"
    " build_binary"
)


@dataclass(frozen=True, slots=True)
class ArpaHeader:
    """Numbers of n-grams of order 1, 2, ...; words (1-grams) include <unk>, <s> and </s>."""

    num_ngrams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BinaryHeader:
    """The same of a binary file, and how to read it."""

    num_ngrams: tuple[int, ...]
    model_type: int
    has_vocabulary: bool
    num_bytes: int  # size of the header


def read_header(path: str | Path) -> ArpaHeader | BinaryHeader:
    """Read what a file holds.

    Raises NgramError, which names the file, if it cannot be read, is not a KenLM file, is
    truncated, differs from a checksum beside it, or has an order that KenLM cannot load.
    """
    try:
        if Path(path).is_fifo():  # a pipe may have no end
            raise NgramError(f"{path} is not a file")
        with open(path, "rb") as file:
            header = _read(file, path)
        check(Path(path))
    except OSError as error:
        raise NgramError(f"{path} cannot be read: {error.strerror}") from error
    order = len(header.num_ngrams)
    if not MIN_ORDER <= order <= MAX_ORDER:
        raise NgramError(f"{path} has order {order}; orders {MIN_ORDER} to {MAX_ORDER} can be used")
    return header


def build_binary(arpa: str | Path, binary: str | Path) -> None:
    """Convert an ARPA file to a KenLM binary: a trie of 8-bit probabilities and back-offs.

    The binary has about a seventh of the size, and is mapped into memory instead of parsed; its
    probabilities are rounded. It appears when it is complete, with a checksum beside it. Raises
    MissingDependencyError if KenLM's `build_binary` is not on PATH, NgramError if it fails, and
    OSError.
    """
    program = shutil.which("build_binary")
    if program is None:
        raise MissingDependencyError(
            "build_binary is not on PATH. It is part of KenLM's C++ tools (github.com/kpu/kenlm,"
            " built with cmake), not of its Python package. It is optional: ARPA files can be"
            " used as they are"
        )
    read_header(arpa)
    binary = Path(binary)
    with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
        output = Path(folder) / "model.bin"
        command = [program, "-q", "8", "-b", "8", "trie", str(Path(arpa).resolve()), str(output)]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if run.returncode != 0:
            lines = run.stderr.strip().splitlines() or ["no message"]
            raise NgramError(f"build_binary could not convert {arpa}: {lines[-1]}")
        publish(output, binary)


def _read(file: IO[bytes], path: str | Path) -> ArpaHeader | BinaryHeader:
    start = file.read(len(_SANITY))
    if not start:
        raise NgramError(f"{path} is empty; {_EXPECTED}")
    if start.startswith(b"\x1f\x8b"):
        raise NgramError(f"{path} is gzip-compressed; decompress it first")
    if start.startswith(_BINARY_MAGIC):
        return _read_binary(file, path, start)
    file.seek(0)
    return ArpaHeader(_read_arpa(file, path))


def _read_binary(file: IO[bytes], path: str | Path, start: bytes) -> BinaryHeader:
    if start != _SANITY:
        raise NgramError(
            f"{path} is a KenLM binary that is incomplete or cut short, or comes from another"
            " version or kind of machine; build it again from its ARPA file"
        )
    truncated = NgramError(f"{path} is cut short; copy or build it again")
    fixed = file.read(_PARAMETERS.size)
    if len(fixed) < _PARAMETERS.size:
        raise truncated
    order, multiplier, model_type, has_vocabulary, _ = _PARAMETERS.unpack(fixed)
    counts = file.read(8 * order)
    if len(counts) < 8 * order:
        raise truncated
    num_ngrams: tuple[int, ...] = struct.unpack(f"<{order}Q", counts)
    if not num_ngrams or not 1 <= multiplier < 1000 or max(num_ngrams) > 8 * _size(file):
        raise NgramError(f"{path} is a KenLM binary with a damaged header; build it again")
    num_bytes = -8 * (-file.tell() // 8)
    return BinaryHeader(num_ngrams, model_type, has_vocabulary, num_bytes)


def _read_arpa(file: IO[bytes], path: str | Path) -> tuple[int, ...]:
    line = file.readline(_MAX_LINE_BYTES)
    while line and (not line.strip() or line.startswith(b"#")):
        line = file.readline(_MAX_LINE_BYTES)
    if line.strip() != b"\\data\\":
        raise NgramError(f"{path} is not a KenLM file (it begins with {line[:20]!r}); {_EXPECTED}")
    num_ngrams: list[int] = []
    while (line := file.readline(_MAX_LINE_BYTES)).strip():
        match = _COUNT_LINE.fullmatch(line)
        if match is None or int(match[1]) != len(num_ngrams) + 1:
            raise NgramError(
                f"{path} has {line[:40]!r} where ARPA has 'ngram {len(num_ngrams) + 1}=count'"
            )
        num_ngrams.append(int(match[2]))
    size = _size(file)
    file.seek(max(0, size - 64))
    is_whole = file.read().rstrip().endswith(b"\\end\\")
    if not is_whole or sum(num_ngrams) * _MIN_BYTES_PER_NGRAM > size:
        raise NgramError(f"{path} is cut short: an ARPA file ends with \\end\\; copy it again")
    return tuple(num_ngrams)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size
