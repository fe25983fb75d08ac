"""`diffuspec demo`: a pair of models on a held-out question of each family."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from diffuspec.cli import display, engine_config, options
from diffuspec.core.params import SamplingParams

if TYPE_CHECKING:
    from diffuspec.bench.questions import Question
    from diffuspec.bench.run import Record
    from diffuspec.engine.engine import Engine

_SHOWN_FAMILY = "math_reasoning"
_MIN_QUESTION_WIDTH, _WIDTH_OF_THE_REST = 10, 72

Repeats = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, help="Number of times each answer is timed; the median is reported."
    ),
]


def run(
    repeats: Repeats = 3,
    max_tokens: options.MaxTokens = 256,
    pair: options.PairName = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
) -> None:
    """Show an answer of a pair of models, then compare plain decoding and DiffuSpec.

    Exits with 1 if tokens differ.
    """
    from diffuspec.bench.questions import first_per_family, load_questions
    from diffuspec.pairs import DEFAULT_PAIR, find_pair

    config = engine_config.compose(options.EngineOptions(pair=pair, dtype=dtype))
    asked = find_pair(pair or DEFAULT_PAIR, "--pair").questions
    questions = first_per_family(load_questions(asked), 1)
    console = display.stdout_console()
    with options.open_engine(config, threads) as engine:
        _show_answer(engine, questions, max_tokens, console)
        with Console(stderr=True).status("timing plain decoding and DiffuSpec in turns"):
            records = _measure(engine, questions, repeats, max_tokens)
    is_same = _show_table(questions, records, console)
    if not is_same:
        raise typer.Exit(1)


def _show_answer(
    engine: Engine, questions: Sequence[Question], max_tokens: int, console: Console
) -> None:
    shown = next((q for q in questions if q.family == _SHOWN_FAMILY), questions[0])
    question = shown.turns[0]
    console.print(f"> {question}\n", markup=False, soft_wrap=True)
    prompt = [{"role": "user", "content": question}]
    sampling = SamplingParams(max_tokens=max_tokens)
    answer = asyncio.run(display.stream_answer(engine, prompt, sampling))
    display.show_statistics(answer.stats)
    console.print()


def _measure(
    engine: Engine, questions: Sequence[Question], repeats: int, max_tokens: int
) -> tuple[Record, ...]:
    from diffuspec.bench.run import ChatCodec, RunSettings, run_questions, warm_up
    from diffuspec.bench.systems.naming import BASELINE, DEFAULT_SYSTEM
    from diffuspec.bench.systems.opening import open_systems

    settings = RunSettings(max_tokens, engine.verifier.info.max_model_len, repeats)
    codec = ChatCodec(engine.tokenizer)
    with open_systems(engine, (BASELINE, DEFAULT_SYSTEM)) as systems:
        warm_up(systems, questions, codec, settings)
        return run_questions(systems, questions, codec, settings).records


def _show_table(questions: Sequence[Question], records: Sequence[Record], console: Console) -> bool:
    """Print a line per family. Return whether all tokens are the same."""
    from diffuspec.bench.run import find_mismatches, median_answers
    from diffuspec.bench.stats import SPEC_BENCH, compute_rows
    from diffuspec.bench.systems.naming import BASELINE, DEFAULT_SYSTEM

    room = max(_MIN_QUESTION_WIDTH, console.width - _WIDTH_OF_THE_REST)
    asked = {q.family: shorten(q.turns[0], room, placeholder=" …") for q in questions}
    wrong = {mismatch.question_id for mismatch in find_mismatches(records)}
    differing = {question.family for question in questions if question.question_id in wrong}
    rows = compute_rows(median_answers(records), (BASELINE, DEFAULT_SYSTEM))
    table = _table()
    for plain, drafted in zip(rows[::2], rows[1::2], strict=True):
        family = drafted.family
        is_same = family not in differing if family in asked else not differing
        table.add_row(
            "the six families" if family == SPEC_BENCH else family,
            asked.get(family, ""),
            f"{plain.tokens_per_second:.0f}",
            f"{drafted.tokens_per_second:.0f}",
            f"{drafted.speedup:.2f}x",
            f"{drafted.mean_acceptance_length:.2f}",
            "yes" if is_same else "[red]NO[/red]",
            end_section=family == questions[-1].family,
        )
    console.print(table)
    return not differing


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("family", no_wrap=True)
    table.add_column("question", no_wrap=True)
    for title in ("plain\ntokens/s", "DiffuSpec\ntokens/s", "speed-up", "acceptance\nlength"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("same\ntokens", no_wrap=True)
    return table
