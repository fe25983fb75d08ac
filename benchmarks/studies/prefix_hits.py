"""`python -m benchmarks.studies.prefix_hits`: drafts behind rows that the cache had, or lost.

Drafters that read the target's hidden states depend on rows that are computed, not found in a
cache. The embedded pair answers questions one at a time: first reading every prompt, then the same
prompts again, which the cache now holds, then losing all rows every few steps, as a preempted
request does when others take its pages. Answers are the same, so only steps can differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput, Verdict, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config, tiny

DEFAULT = "diffuspec"  # the pair's own drafter
OTHERS: dict[str, dict[str, Any]] = {
    **tiny.other_drafters(),
    **{kind: {"kind": kind} for kind in ("pld", "samd", "token_recycling", "lookahead")},
}
STEPS_PER_LOSS = 4  # verifications after which all rows are lost

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to some prompts, step by step."""

    outputs: tuple[tuple[RequestOutput, ...], ...]

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        return [sum((step.token_ids for step in answer), ()) for answer in self.outputs]

    @property
    def drafts(self) -> list[tuple[int, ...]]:
        """The tokens drafted in each step."""
        steps = [step.draft for answer in self.outputs for step in answer]
        return [() if draft is None else draft.tree.token_ids for draft in steps]

    @property
    def num_cached_tokens(self) -> int:
        return sum(answer[0].step.num_cached_tokens for answer in self.outputs)

    @property
    def acceptance(self) -> float:
        """Committed tokens per step."""
        return sum(map(len, self.token_ids)) / sum(map(len, self.outputs))


def make_engine(others: Mapping[str, Mapping[str, Any]]) -> Engine:
    """Return an engine of the embedded pair, with other drafters beside its own."""
    target = {"path": tiny.TARGET, "device": "cpu", "max_sequences": 1}
    coordinator = {"overlap": False, "profile_seconds": 0}
    sections = {"preset": "tiny", "target": target, "coordinator": coordinator}
    return Engine.from_config(parse_config(sections | {"drafters": others}))


async def ask(
    engine: Engine, kind: str, prompts: Sequence[Prompt], max_tokens: int, salt: str | None = None
) -> Answers:
    """Answer prompts one at a time; nothing is shared with answers of another salt."""
    sampling = SamplingParams(max_tokens=max_tokens, cache_salt=salt)
    drafted = SpeculationParams(
        policy="fixed", num_draft_tokens=8, report_drafts=True, drafter=kind
    )
    streams = [engine.stream(prompt, sampling, drafted) for prompt in prompts]
    return Answers(tuple([tuple([output async for output in stream]) for stream in streams]))


@contextmanager
def losing_rows(engine: Engine) -> Iterator[None]:
    """Let the target lose its rows every few steps: it reads the tokens again."""
    verifier: Any = engine.verifier
    verify, num_calls = verifier.verify, 0

    async def losing(requests: Sequence[VerifyRequest]) -> list[Verdict]:
        nonlocal num_calls
        num_calls += 1
        if num_calls % STEPS_PER_LOSS == 0:
            verifier.runner.cache.reset()
        found: list[Verdict] = await verify(requests)
        return found

    verifier.verify = losing
    try:
        yield
    finally:
        verifier.verify = verify


async def compare(
    engine: Engine, kind: str, prompts: Sequence[Prompt], max_tokens: int
) -> tuple[Answers, Answers, Answers]:
    """Return the answers whose prompts were read, found in the cache, and lost with all rows."""
    engine.reset_prefix_cache()
    read, found = [await ask(engine, kind, prompts, max_tokens) for _ in range(2)]
    with losing_rows(engine):
        return read, found, await ask(engine, kind, prompts, max_tokens, f"lost by {kind}")


async def measure(prompts: Sequence[Prompt], max_tokens: int) -> TextTable:
    """Return committed tokens per step for each kind of drafter."""
    rows = []
    async with make_engine(OTHERS) as engine:
        for kind in track([DEFAULT, *OTHERS], "drafters", console=Console(stderr=True)):
            answers = await compare(engine, kind, prompts, max_tokens)
            different = sum(found.token_ids != answers[0].token_ids for found in answers)
            cells = [f"{found.acceptance:.2f}" for found in answers]
            rows.append((kind, *cells, f"{answers[1].num_cached_tokens:,}", str(different)))
    heads = "drafter", "prompts read", "found", "rows lost", "tokens found", "other answers"
    return TextTable("Tokens per step", heads, tuple(rows))


@app.command(cls=Command)
def main(
    limit: Annotated[int, typer.Option(help="Questions of each family.", min=1)] = 3,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 96,
) -> None:
    """Print committed tokens per step for each kind of drafter."""
    torch.set_num_threads(1)
    questions = first_per_family(load_questions(tiny.QUESTIONS), limit)
    prompts: list[Prompt] = [
        [{"role": "user", "content": question.turns[0]}] for question in questions
    ]
    note = f"{len(prompts)} questions; rows are lost every {STEPS_PER_LOSS} steps"
    print_tables([asyncio.run(measure(prompts, max_tokens))], [note], Console())


if __name__ == "__main__":
    app()
