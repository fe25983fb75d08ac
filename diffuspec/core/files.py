"""Files that grow line by line, and whose last line a killed process may have left incomplete."""

from __future__ import annotations

import os
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
