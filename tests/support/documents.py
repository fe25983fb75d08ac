"""The Markdown files of the repository, for tests: their code blocks, links and code spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.first_day.blocks import FENCE, Block, blocks

__all__ = ["DOCUMENTS", "ROOT", "Block", "anchors", "blocks", "code_spans", "links", "prose"]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "clients/*.md", "docs/*.md", "diffuspec/**/*.md")
    for path in ROOT.glob(pattern)
    if ".venv" not in path.parts
)

_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@cache
def prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


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
