"""Files of processes that may be killed at any moment: whole, or without their last line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 2**20


def cut_torn_line(file: BinaryIO) -> None:
    """Remove what follows the last newline, and seek the start of the file."""
    end = file.seek(0, os.SEEK_END)
    place, kept = end, 0
    while place > 0:
        start = max(place - _BLOCK_BYTES, 0)
        file.seek(start)
        newline = file.read(place - start).rfind(b"\n")
        if newline >= 0:
            kept = start + newline + 1
            break
        place = start
    if kept < end:
        file.truncate(kept)
    file.seek(0)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, after the last whole one."""
    with path.open("a+b") as file:
        cut_torn_line(file)
        file.write(f"{line}\n".encode())


def replace_text(path: Path, text: str) -> None:
    """Write a file at once: a process that is killed leaves the old one or the new one."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
