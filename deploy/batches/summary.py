"""The statistics of a batch: counted from results, shown during the run and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from deploy.batches.outputs import Result
from deploy.batches.results import is_failure, usages

Refresh: TypeAlias = Callable[[], None]

_LINE_SECONDS = 30.0  # pause between two lines of output where no bar can be drawn


@dataclass(slots=True)
class Tally:
    """Counts over results."""

    num_rows: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_stepped_tokens: int = 0  # tokens of answers that report their steps

    def add(self, result: Result) -> None:
        self.num_rows += 1
        self.num_failed += is_failure(result)
        for usage in usages(result):
            num_tokens = usage.get("completion_tokens", 0)
            self.num_prompt_tokens += usage.get("prompt_tokens", 0)
            self.num_output_tokens += num_tokens
            if num_steps := (usage.get("speculation") or {}).get("steps"):
                self.num_steps += num_steps
                self.num_stepped_tokens += num_tokens

    def merge(self, other: Tally) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per step, the target's own included; None if no answer reports its steps."""
        return self.num_stepped_tokens / self.num_steps if self.num_steps else None


@dataclass(slots=True)
class Counts:
    """The results that existed when a run began, and those of the run."""

    num_rows: int  # rows that have a result at the end
    before: Tally = field(default_factory=Tally)
    now: Tally = field(default_factory=Tally)

    @property
    def num_done(self) -> int:
        return self.before.num_rows + self.now.num_rows

    @property
    def state(self) -> str:
        """The number of rows done, in words."""
        rest = f" of {self.num_rows}" if self.num_rows > self.num_done else ""
        return f"{self.num_done}{rest} rows"

    @property
    def num_failed(self) -> int:
        return self.before.num_failed + self.now.num_failed


@contextmanager
def progress_shown(counts: Counts, console: Console) -> Iterator[Refresh]:
    """Show the number of rows done: as a bar on a terminal, elsewhere as occasional lines.

    Call the yielded function after each change of `counts`.
    """
    if not console.is_terminal:
        num_left = counts.num_rows - counts.num_done
        console.print(f"answering {num_left} row{'' if num_left == 1 else 's'}", soft_wrap=True)
        yield _line_now_and_then(counts, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("rows", total=counts.num_rows, completed=counts.num_done)

        def refresh() -> None:
            failed = f", {counts.num_failed} failed" if counts.num_failed else ""
            progress.update(task, completed=counts.num_done, description=f"rows{failed}")

        yield refresh


def _line_now_and_then(counts: Counts, console: Console) -> Refresh:
    shown_at = time.monotonic()

    def refresh() -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _LINE_SECONDS:
            shown_at = time.monotonic()
            console.print(
                f"{counts.num_done} of {counts.num_rows} rows, {counts.num_failed} failed",
                soft_wrap=True,
            )

    return refresh


def summary_table(counts: Counts, seconds: float) -> Table:
    """Return the statistics of a run that took this many seconds."""
    now = counts.now
    length = now.mean_acceptance_length
    rate = now.num_output_tokens / seconds if seconds else 0.0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    rows = {
        "rows answered": str(now.num_rows - now.num_failed),
        "rows failed": str(now.num_failed),
        "rows done before": _with_failures(counts.before),
        "prompt tokens": str(now.num_prompt_tokens),
        "output tokens": str(now.num_output_tokens),
        "seconds": f"{seconds:.1f}",
        "output tokens/s": f"{rate:.0f}",
        "acceptance length": "-" if length is None else f"{length:.2f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _with_failures(tally: Tally) -> str:
    return (
        f"{tally.num_rows} ({tally.num_failed} failed)" if tally.num_failed else f"{tally.num_rows}"
    )
