"""`python -m benchmarks.studies.small_cache MODEL`: many requests in a cache that holds few.

Requests of mixed lengths (greedy, sampled, and with a form) are answered one at a time, then all at
once without drafts, with drafts, and while the verifier loses its cache now and then. Every answer
and every log-probability must be the same. `--shared N` instead lets requests share a system prompt
of N tokens, and tells how many of them each one finds in the cache, and when its first token comes.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
from diffuspec.core.types import Prompt, RequestOutput, TokenLogprobs, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config

_GREEDY = SamplingParams(ignore_eos=True, logprobs=2)
_KINDS = (
    _GREEDY,
    replace(_GREEDY, temperature=0.9, top_p=0.95, seed=5),
    replace(_GREEDY, ignore_eos=False, structured_output=StructuredOutput(regex="[a-z ]{8,40}")),
)
MAX_TREE_NODES = 32
PLAIN, DRAFTED = SpeculationParams(policy="off"), SpeculationParams()
# Verifications after which the verifier loses its cache: enough to read again what it held.
_STEPS_PER_LOSS = 500

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, their log-probabilities, and how it began."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    num_cached_tokens: int
    first_token_seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    prompt: Prompt
    sampling: SamplingParams


async def answer(engine: Engine, job: Job, speculation: SpeculationParams) -> Answer:
    started, first_token_at = time.monotonic(), 0.0
    outputs: list[RequestOutput] = []
    async for output in engine.stream(job.prompt, job.sampling, speculation):
        first_token_at = first_token_at or time.monotonic()
        outputs.append(output)
    step = outputs[0].step
    return Answer(
        tuple(token_id for output in outputs for token_id in output.token_ids),
        tuple(entry for output in outputs for entry in output.logprobs or ()),
        0 if step is None else step.num_cached_tokens,
        first_token_at - started,
    )


def num_different(answers: Sequence[Answer], expected: Sequence[Answer]) -> int:
    """Return how many answers have other tokens or log-probabilities than expected."""
    return sum(
        (found.token_ids, found.logprobs) != (right.token_ids, right.logprobs)
        for found, right in zip(answers, expected, strict=True)
    )


def make_jobs(text: Sequence[int], number: int, longest: int, num_answered: int) -> list[Job]:
    """Return requests of 100 to `longest` tokens cut from a text, in a random order."""
    random = np.random.default_rng(0)
    jobs = []
    for index, length in enumerate(np.linspace(min(100, longest), longest, number).astype(int)):
        first = int(random.integers(0, len(text) - length))
        sampling = replace(_KINDS[index % len(_KINDS)], max_tokens=num_answered)
        jobs.append(Job(list(text[first : first + length]), sampling))
    return [jobs[index] for index in random.permutation(number)]


def _salted(jobs: Sequence[Job], salt: str) -> list[Job]:
    """Return jobs that find nothing in the cache that earlier runs have left."""
    return [Job(job.prompt, replace(job.sampling, cache_salt=salt)) for job in jobs]


def lose_cache(engine: Engine, steps_per_loss: int) -> None:
    """Let the verifier lose its cache again and again, as if it had been replaced."""
    verifier: Any = engine.verifier
    verify, numbers = verifier.verify, itertools.count(1)

    async def losing(requests: Sequence[VerifyRequest]) -> Any:
        if next(numbers) % steps_per_loss == 0:
            verifier.runner.cache.reset()
            raise VerifierUnavailableError("the verifier has lost its cache")
        return await verify(requests)

    verifier.verify = losing


def value(engine: Engine, name: str) -> float:
    return engine.metrics.registry.get_sample_value(f"diffuspec_{name}") or 0.0


class Study:
    """Runs of the same requests, each compared with the first."""

    def __init__(self, engine: Engine, jobs: Sequence[Job]) -> None:
        self._engine, self._jobs = engine, jobs
        self._expected: list[Answer] = []
        self.rows: list[tuple[str, ...]] = []
        self.num_different = 0

    async def run(self, name: str, speculation: SpeculationParams, *, at_once: bool) -> None:
        engine, started = self._engine, time.monotonic()
        before = [value(engine, f"{name}_total") for name in ("num_preemptions", "reread_tokens")]
        calls = [answer(engine, job, speculation) for job in _salted(self._jobs, name)]
        answers = await asyncio.gather(*calls) if at_once else [await call for call in calls]
        seconds = time.monotonic() - started
        self._expected = self._expected or answers
        different = num_different(answers, self._expected)
        self.num_different += different
        after = [value(engine, f"{name}_total") for name in ("num_preemptions", "reread_tokens")]
        counts = [f"{new - old:,.0f}" for new, old in zip(after, before, strict=True)]
        self.rows.append((name, f"{seconds:.1f}", *counts, str(different)))
        typer.echo(f"{name}: {seconds:.1f} s, {different} answers differ", err=True)


async def study(engine: Engine, jobs: Sequence[Job]) -> Study:
    """Answer the jobs one at a time, then at once in three ways."""
    found = Study(engine, jobs)
    async with engine:
        await found.run("one at a time", PLAIN, at_once=False)
        await found.run("at once", PLAIN, at_once=True)
        await found.run("at once, with drafts", DRAFTED, at_once=True)
        lose_cache(engine, _STEPS_PER_LOSS)
        await found.run("the same, cache lost", DRAFTED, at_once=True)
    return found


async def share(
    engine: Engine, text: Sequence[int], number: int, num_shared: int
) -> tuple[TextTable, str]:
    """Let requests with different questions share a system prompt: one, a second, then the rest."""
    system, sampling = list(text[:num_shared]), replace(_GREEDY, max_tokens=32)
    questions = [list(text[-20 * (index + 1) :][:20]) for index in range(number)]
    jobs = [Job(system + question, sampling) for question in questions]
    async with engine:
        alone = [await answer(engine, job, PLAIN) for job in jobs[:2]]
        rest = asyncio.gather(*[answer(engine, job, PLAIN) for job in jobs[2:]])
        most_shared = most_used = 0.0
        while not rest.done():
            most_shared = max(most_shared, value(engine, "kv_cache_pages_shared"))
            most_used = max(most_used, value(engine, "kv_cache_pages_used"))
            await asyncio.sleep(0.01)
        answers = [*alone, *await rest]
    rows = [
        (
            str(index + 1),
            str(len(job.prompt)),
            str(one.num_cached_tokens),
            f"{one.first_token_seconds:.3f}",
        )
        for index, (job, one) in enumerate(zip(jobs, answers, strict=True))
    ]
    note = f"{number - 2} at once: {most_used:.0f} pages in use, {most_shared:.0f} of them shared"
    heads = "request", "tokens", "cached", "first token, s"
    return TextTable("A shared system prompt", heads, tuple(rows)), note


def make_engine(
    model: Path, number: int, cache_memory: float | None = None, positions: int = 2048
) -> Engine:
    """Return an engine for a number of requests at once, with drafts from their own text."""
    target = {"path": model, "device": "cpu", "exact": True, "max_sequences": number}
    target |= {"max_model_len": positions, "max_tree_nodes": MAX_TREE_NODES}
    if cache_memory is not None:
        target["cache_memory"] = cache_memory
    return Engine.from_config(parse_config({"target": target, "drafter": {"kind": "pld"}}))


@app.command(cls=Command)
def main(
    model: Path,
    requests: int = 64,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 1960,
    answered: Annotated[int, typer.Option(help="Tokens of an answer.")] = 40,
    cache_memory: Annotated[float, typer.Option(help="In bytes.")] = 600e6,
    text: Annotated[Path, typer.Option(help="What prompts are cut from.")] = Path(
        "docs/results.md"
    ),
    shared: Annotated[int, typer.Option(help="Tokens of a shared system prompt.")] = 0,
) -> None:
    """Answer requests in a cache that holds few of them; exit with 1 if an answer differs."""
    engine = make_engine(model, requests, cache_memory)
    token_ids = engine.tokenizer.encode(text.read_text(encoding="utf-8"))
    if shared:
        table, note = asyncio.run(share(engine, token_ids, requests, shared))
        print_tables([table], [note], Console())
        return
    jobs = make_jobs(token_ids, requests, longest, answered)
    found = asyncio.run(study(engine, jobs))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    num_tokens = sum(len(job.prompt) for job in jobs)
    pages = value(engine, "kv_cache_pages")
    note = (
        f"{requests} requests, {num_tokens:,} tokens of prompts, {pages:.0f} pages of 64 tokens; "
        f"peak memory {peak:.2f} GiB"
    )
    heads = "run", "s", "preemptions", "tokens read again", "answers that differ"
    table = TextTable("Many requests in a small cache", heads, tuple(found.rows))
    print_tables([table], [note], Console())
    raise typer.Exit(int(found.num_different > 0))


if __name__ == "__main__":
    app()
