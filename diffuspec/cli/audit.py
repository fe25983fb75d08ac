"""`diffuspec audit`: compare answers with those of plain decoding."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from diffuspec.cli import engine_config, options
from diffuspec.cli.parameters import NOTHING_GIVEN, Given
from diffuspec.core.params import SamplingParams
from diffuspec.pairs import DEFAULT_PAIR, find_pair

if TYPE_CHECKING:
    from diffuspec.bench.questions import Question
    from diffuspec.engine.engine import Engine

EXAMPLES = """[bold]Examples[/bold]

  diffuspec audit
  diffuspec audit --pair smollm2 --dtype bfloat16 --questions question.jsonl --limit 14
  diffuspec audit --pair smollm2 --drafter-kind token_recycling --temperature 0.8 --seed 1
"""


@options.takes_sampling
@options.takes_engine
@options.takes_speculation
def run(
    questions: options.Questions = None,
    limit: options.Limit = None,
    sampling: Given = NOTHING_GIVEN,
    given: options.EngineOptions = options.NO_OPTIONS,
    speculation: Given = NOTHING_GIVEN,
) -> None:
    """Answer questions with drafts and again without, several at a time, and compare the tokens.

    Names the first token that differs, with the gap between the two likeliest. Exits
    with 1 if any token differs.
    """
    from diffuspec.bench.questions import first_per_family, load_questions

    how = SamplingParams(**sampling).with_seed()
    settings = engine_config.compose(given, speculation, max_sequences=None)
    file = questions or find_pair(given.pair or DEFAULT_PAIR, "--pair").questions
    asked = first_per_family(load_questions(file), limit)
    with options.open_engine(settings, given.threads) as engine:
        num_different = asyncio.run(_audit_all(engine, asked, how))
    raise typer.Exit(int(num_different > 0))


async def _audit_all(
    engine: Engine, questions: Sequence[Question], sampling: SamplingParams
) -> int:
    """Audit the first turns of questions; print the differences, and return their number."""
    num_tokens = num_different = 0
    size = engine.verifier.info.max_sequences
    try:
        for first in range(0, len(questions), size):
            group = questions[first : first + size]
            audits = [_audit_one(engine, question, sampling) for question in group]
            for tokens, is_same in await asyncio.gather(*audits):
                num_tokens += tokens
                num_different += not is_same
    finally:
        await engine.stop()
    typer.echo(f"{len(questions)} answers, {num_tokens} tokens: {num_different} differ")
    return num_different


async def _audit_one(
    engine: Engine, question: Question, sampling: SamplingParams
) -> tuple[int, bool]:
    """Return the length of an answer, and whether plain decoding gives the same tokens."""
    from diffuspec.audit import audit

    prompt = engine.encode([{"role": "user", "content": question.turns[0]}]).tolist()
    answer = await engine.complete(prompt, sampling)
    found = await audit(engine, prompt, sampling, answer.token_ids)
    if found is not None:
        gap = "" if found.gap is None else f"; gap of the two likeliest {found.gap:.2g}"
        typer.echo(
            f"question {question.question_id}: token {found.position} is {found.token_id}, "
            f"without drafts {found.plain_token_id}{gap}"
        )
    return len(answer.token_ids), found is None
