"""The Markdown files of the repository, for tests: their code blocks, links and code spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "clients/*.md", "docs/*.md", "diffuspec/**/*.md")
    for path in ROOT.glob(pattern)
    if ".venv" not in path.parts
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (.*?) -->\n\Z")
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    path: Path
    line: int  # of its first line of code, from 1
    language: str  # "" if the fence names none
    text: str
    note: str  # the comment in the line before the fence, which readers do not see

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


@cache
def blocks(path: Path) -> Sequence[Block]:
    """Return the fenced blocks of a document in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        note = _NOTE.search(before)
        line = before.count("\n") + 2
        found.append(Block(path, line, match[1], match[2], note[1] if note else ""))
    return found


@cache
def prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def code_spans(path: Path) -> Sequence[str]:
    """Return what stands between backticks outside of fenced blocks."""
    return _SPAN.findall(prose(path))


def links(path: Path) -> list[str]:
    """Return the targets of all links."""
    return _LINK.findall(_SPAN.sub("", prose(path)))


def anchors(path: Path) -> set[str]:
    """Return the names under which a document's headings can be linked to, as GitHub makes them."""
    headings = _HEADING.findall(prose(path))
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}
