"""The checksum beside an n-gram model: FILE.sha256, as the program sha256sum writes it.

KenLM does not check its files: a byte changed in the middle of one changes scores silently, and may
crash the process. The checksum finds files damaged by chance, not those changed with intent.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from diffuspec.core.errors import NgramError

_SUFFIX = ".sha256"
_LINE = re.compile(r"([0-9a-f]{64})\b.*\s*")


def publish(temporary: Path, path: Path) -> None:
    """Move a complete file to its place, and write its checksum beside it. Raises OSError.

    If this is interrupted, the file has no checksum, and is read without.
    """
    line = f"{_digest(temporary)}  {path.name}\n"
    _beside(path).unlink(missing_ok=True)
    os.replace(temporary, path)
    _beside(path).write_text(line, encoding="utf-8")


def check(path: Path) -> None:
    """Compare a file with its checksum, if there is one. Raises NgramError and OSError."""
    beside = _beside(path)
    if not beside.is_file():
        return
    match = _LINE.fullmatch(beside.read_bytes()[:4096].decode("utf-8", "replace"))
    if match is None:
        raise NgramError(f"{beside} is not a checksum: write it by sha256sum, or remove it")
    if match[1] != _digest(path):
        raise NgramError(
            f"{path} differs from its checksum in {beside.name}: it is damaged or of another "
            "version. Copy or build it again; if it is right, remove the checksum"
        )


def _beside(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
