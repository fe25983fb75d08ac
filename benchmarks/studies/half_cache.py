"""`python -m benchmarks.studies.half_cache MODEL`: load in a cache of what is needed, and of half.

Requests of mixed lengths are answered at once, 1 to 128 of them, with drafts from their own text. A
cache that holds half of their tokens preempts some; the table tells what that costs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.progress import progress
from benchmarks.studies.small_cache import (
    DRAFTED,
    MAX_TREE_NODES,
    Answer,
    Job,
    answer,
    make_engine,
    make_jobs,
    num_different,
    value,
)
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.core.pages import num_pages_of
from diffuspec.engine.engine import Engine

_NUMBERS = (1, 8, 32, 128)
_TRIAL_BYTES = 600e6  # size of a first cache, which tells that of a page
_HEADS = (
    "requests",
    "cache",
    "tokens/s",
    "first token, s",
    "the last, s",
    "preempted",
    "read again",
    "differ",
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def num_pages_needed(jobs: Sequence[Job]) -> int:
    """Return the pages of all requests with their answers and the widest drafts."""
    return sum(
        num_pages_of(len(job.prompt) + job.sampling.max_tokens + MAX_TREE_NODES) for job in jobs
    )


async def load(engine: Engine, jobs: Sequence[Job]) -> tuple[list[Answer], tuple[str, ...]]:
    """Answer the jobs at once; return the answers, and what it took as a part of a row."""
    async with engine:
        started = time.monotonic()
        answers = await asyncio.gather(*[answer(engine, job, DRAFTED) for job in jobs])
        seconds = time.monotonic() - started
    firsts = sorted(found.first_token_seconds for found in answers)
    num_tokens = sum(len(found.token_ids) for found in answers)
    counts = [value(engine, f"{name}_total") for name in ("num_preemptions", "reread_tokens")]
    seen = f"{num_tokens / seconds:.1f}", f"{statistics.median(firsts):.1f}", f"{firsts[-1]:.1f}"
    return answers, (*seen, *(f"{count:,.0f}" for count in counts))


def loads(
    model: Path, text: Path, most: int, longest: int, answered: int, say: Callable[[str], None]
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of requests and each size of the cache."""
    engine = make_engine(model, 1, _TRIAL_BYTES)
    page_bytes = _TRIAL_BYTES / asyncio.run(_num_pages(engine))
    token_ids = engine.tokenizer.encode(text.read_text(encoding="utf-8"))
    for number in [number for number in _NUMBERS if number <= most]:
        jobs = make_jobs(token_ids, number, longest, answered)
        expected: list[Answer] = []
        for name, share in (("all", 1.0), ("half", 0.5)) if number > 1 else (("all", 1.0),):
            say(f"{number} requests, {name} of what they need")
            engine = make_engine(model, number, page_bytes * (share * num_pages_needed(jobs) + 1))
            answers, seen = asyncio.run(load(engine, jobs))
            expected = expected or answers
            yield str(number), name, *seen, str(num_different(answers, expected))


async def _num_pages(engine: Engine) -> float:
    async with engine:
        return value(engine, "kv_cache_pages")


@app.command(cls=Command)
def main(
    model: Path,
    most: Annotated[int, typer.Option(help="Requests at once in the last rows.")] = 128,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 1000,
    answered: Annotated[int, typer.Option(help="Tokens of an answer.")] = 100,
    text: Annotated[Path, typer.Option(help="What prompts are cut from.")] = Path(
        "docs/results.md"
    ),
) -> None:
    """Answer 1 to 128 requests at once in a cache of what they need, and of half of it."""
    with progress("half of the cache", Console(stderr=True)) as say:
        rows = tuple(loads(model, text, most, longest, answered, say))
    print_tables(
        [TextTable("Load in a cache that holds all, or half", _HEADS, rows)], [], Console()
    )
    raise typer.Exit(int(any(row[-1] != "0" for row in rows)))


if __name__ == "__main__":
    app()
