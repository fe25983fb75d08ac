"""Block: a fenced block of a Markdown page, with the comment before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (.*?) -->\n\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    path: Path
    line: int  # number of its first line of code, from 1
    language: str  # "" if the fence names none
    text: str
    note: str  # the comment in the line before the fence, which readers do not see

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


@cache
def blocks(path: Path) -> Sequence[Block]:
    """Return the fenced blocks of a page in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        note = _NOTE.search(before)
        line = before.count("\n") + 2
        found.append(Block(path, line, match[1], match[2], note[1] if note else ""))
    return found
