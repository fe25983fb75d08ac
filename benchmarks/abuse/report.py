"""The results of a run: a table of its attacks, and lines about the whole."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from benchmarks.abuse.attack import Attempt
from benchmarks.abuse.bystanders import Request, Waits
from benchmarks.abuse.run import NUM_PASSES, Run

_COLUMNS = ("sent", "came back", "s", *(f"{request}, s" for request in Request), "MiB")


def rows(run: Run) -> list[tuple[str, ...]]:
    """Return the cells of all attacks, those of the two passes with a slash between them."""
    by_attack: dict[str, list[Attempt]] = {}
    for attempt in run.attempts:
        by_attack.setdefault(attempt.attack.name, []).append(attempt)
    return [_row(name, attempts) for name, attempts in by_attack.items()]


def to_rich(run: Run) -> Table:
    table = Table(title=f"Abuse of {run.name}, twice", title_justify="left", box=box.SIMPLE)
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    table.add_row("nothing", "", "", *_waits([run.idle]), "")
    for row in rows(run):
        table.add_row(*row)
    return table


def to_markdown(run: Run) -> str:
    """Return the table for a document."""
    rules = ("---", "---", *("---:" for _ in _COLUMNS[2:]))
    cells = [_COLUMNS, rules, ("nothing", "", "", *_waits([run.idle]), ""), *rows(run)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def lines(run: Run) -> Iterator[str]:
    """Yield a line for memory, and one for the end under attack if it was measured."""
    memory = ", ".join(f"{mib:,.0f}" for mib in run.memory_mib)
    yield f"memory before and after each pass: {memory} MiB"
    if run.end_seconds is not None:
        yield f"ended {run.end_seconds:.1f} s after SIGTERM, under attack"


def _row(name: str, attempts: list[Attempt]) -> tuple[str, ...]:
    answers = dict.fromkeys(attempt.summary for attempt in attempts)
    return (
        name,
        " / ".join(answers),
        _both(f"{attempt.seconds:.1f}" for attempt in attempts),
        *_waits([attempt.waits for attempt in attempts]),
        _both(f"{attempt.growth_mib:+.0f}" for attempt in attempts),
    )


def _waits(waits: list[Waits]) -> Iterator[str]:
    for request in Request:
        longest = [measured.longest.get(request) for measured in waits]
        yield _both("-" if seconds is None else f"{seconds:.2f}" for seconds in longest)


def _both(cells: Iterator[str]) -> str:
    return " / ".join(list(cells)[:NUM_PASSES])
