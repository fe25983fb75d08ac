"""Types the commands and programs of the pages in one place; makes a table of the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.first_day.place import Place
from benchmarks.first_day.terminal import FailedError, Terminal
from benchmarks.first_day.typed import Typed, typed_on

_SHOWN = 60  # letters of a command in the table


class Outcome(NamedTuple):
    """The result of one command or program."""

    typed: Typed
    text: str
    has_failed: bool = False


def spend_day(place: Place, pages: Sequence[Path]) -> list[Outcome]:
    """Type all that pages say, each page in a new terminal."""
    return [outcome for page in pages for outcome in _read(page, place)]


def _read(page: Path, place: Place) -> list[Outcome]:
    terminal, outcomes = Terminal(place), list[Outcome]()
    for typed in typed_on(page):
        obstacle = typed.obstacle
        if obstacle is None and typed.needs_checkout and not place.has_checkout:
            obstacle = "needs a checkout"
        outcomes.append(Outcome(typed, obstacle) if obstacle else _enter(terminal, typed))
    try:
        terminal.close()
    except FailedError as error:
        print(f"{page.name}: {error}", file=sys.stderr, flush=True)
        outcomes[-1] = outcomes[-1]._replace(text="FAILED at the end", has_failed=True)
    return outcomes


def _enter(terminal: Terminal, typed: Typed) -> Outcome:
    began = time.monotonic()
    try:
        terminal.enter(typed)
    except FailedError as error:
        print(f"{typed.block} {_brief(typed)}: {error}", file=sys.stderr, flush=True)
        return Outcome(typed, "FAILED", has_failed=True)
    outcome = Outcome(typed, f"{time.monotonic() - began:.1f} s")
    print(f"{typed.block} {_brief(typed)}: {outcome.text}", file=sys.stderr, flush=True)
    return outcome


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return a Markdown table with a column for each place."""
    lines = [f"| place | typed | {' | '.join(outcomes)} |", f"|---|---|{'---|' * len(outcomes)}"]
    for rows in zip(*outcomes.values(), strict=True):
        typed = rows[0].typed
        cells = " | ".join(row.text for row in rows)
        lines.append(f"| {typed.block} | {_brief(typed)} | {cells} |")
    return "\n".join(lines)


def _brief(typed: Typed) -> str:
    if typed.file is not None:
        return f"the file {typed.file}"
    if typed.is_program:
        return "a program"
    line = typed.text.splitlines()[0].replace("|", "\\|")
    return f"`{line[:_SHOWN]}`"
