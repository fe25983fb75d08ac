"""`python -m benchmarks.studies.diffusion_lms`: diffusion LMs as drafters of one target.

All answer the same questions in turns, with the same path search; each learns its own costs and
acceptance. Tokens must equal those of plain decoding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from diffuspec.bench.output import progress
from diffuspec.bench.questions import Question, first_per_family, load_questions
from diffuspec.bench.report import (
    describe_mismatches,
    families_tables,
    interval_table,
    print_tables,
    speed_table,
)
from diffuspec.bench.run import (
    ChatCodec,
    Mismatch,
    Record,
    RunSettings,
    find_mismatches,
    median_answers,
    run_questions,
    warm_up,
)
from diffuspec.bench.stats import Row, compute_rows
from diffuspec.bench.systems.answer import System
from diffuspec.bench.systems.engine_system import EngineSystem, sibling
from diffuspec.bench.systems.naming import BASELINE, WHOLE_DRAFT_NODES, speculation_for
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import MAX_BLOCK_SIZE, DiffuSpecConfig
from diffuspec.core.errors import ConfigError
from diffuspec.engine.engine import Engine
from diffuspec.pairs import DEFAULT_PAIR, find_pair, parse_config

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Drafters = Annotated[
    list[str],
    typer.Argument(help="Directories of diffusion LMs, each with :BLOCK_SIZE after it if needed."),
]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of the drafters, plain decoding first, and the answers that differ from it."""

    rows: tuple[Row, ...]
    mismatches: tuple[Mismatch, ...]

    def tables(self) -> list[TextTable]:
        """Return the tables of speed, confidence intervals and question families."""
        rows = self.rows
        return [speed_table(rows, self.mismatches), interval_table(rows), *families_tables(rows)]


def parse_drafter(text: str) -> DiffuSpecConfig:
    """Read DIR or DIR:BLOCK_SIZE. Raises ConfigError."""
    path, colon, size = text.rpartition(":")
    if not colon or not size.isdigit() or Path(text).is_dir():
        return DiffuSpecConfig(path=Path(text))
    if not 1 <= int(size) <= MAX_BLOCK_SIZE:
        raise ConfigError(
            f"a block size must be from 1 to {MAX_BLOCK_SIZE}, got {size} in {text!r}"
        )
    return DiffuSpecConfig(path=Path(path), block_size=int(size))


def name_drafters(sections: Sequence[DiffuSpecConfig]) -> dict[str, DiffuSpecConfig]:
    """Name drafters by directory, with as many parent folders as needed to tell them apart."""
    longest = max(len(section.path.parts) for section in sections)
    sizes = ["" if one.block_size is None else f":{one.block_size}" for one in sections]
    for depth in range(1, longest + 1):
        parts = [Path(*section.path.parts[-depth:]) for section in sections]
        names = [f"{part}{size}" for part, size in zip(parts, sizes, strict=True)]
        if len(set(names)) == len(sections):
            return dict(zip(names, sections, strict=True))
    raise ConfigError(f"a drafter is given twice: {', '.join(names)}")


def with_steps(
    drafters: Mapping[str, DiffuSpecConfig], num_steps: Sequence[int]
) -> dict[str, DiffuSpecConfig]:
    """Return each drafter with each number of denoising steps, which is in its name unless 1."""
    return {
        name if steps == 1 else f"{name}, {steps} steps": section.model_copy(
            update={"num_refinement_steps": steps}
        )
        for name, section in drafters.items()
        for steps in num_steps
    }


def compare(
    config: EngineConfig,
    drafters: Mapping[str, DiffuSpecConfig],
    questions: Sequence[Question],
    max_tokens: int,
    *,
    whole_drafts: bool = False,
) -> Comparison:
    """Answer all questions with each drafter, and without one. Raises DiffuspecError."""
    names = (BASELINE, *drafters)
    plain = config.model_copy(update={"drafter": None, "drafters": {}})
    num_turns = sum(len(question.turns) for question in questions)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Engine.from_config(plain))
        systems: list[System] = [
            EngineSystem(BASELINE, engine, speculation_for(BASELINE, engine.default_speculation))
        ]
        speculation = speculation_for("diffuspec", engine.default_speculation, whole_drafts)
        for name, section in drafters.items():
            own = plain.model_copy(update={"drafter": section})
            drafting = stack.enter_context(sibling(engine, own))
            systems.append(EngineSystem(name, drafting, speculation))
        codec = ChatCodec(engine.tokenizer)
        settings = RunSettings(max_tokens, engine.verifier.info.max_model_len)
        advance = stack.enter_context(progress(num_turns * len(names)))

        def announce(record: Record) -> None:
            advance(f"{record.family}, {record.system}")

        warm_up(systems, questions, codec, settings)
        records = run_questions(systems, questions, codec, settings, announce).records
    rows = compute_rows(median_answers(records), names)
    return Comparison(tuple(rows), tuple(find_mismatches(records)))


def make_config(pair: str, target: Path | None, ngram: Path | None) -> EngineConfig:
    """Compose the configuration of the target and the search. Raises ConfigError."""
    if target is None:
        data = find_pair(pair, "--pair").load_config().model_dump()
    else:
        data = {"target": {"path": target}, "search": {}}
    if ngram is not None:
        data["search"]["ngram"] = ngram
    data["target"] |= {"max_sequences": 1, "max_tree_nodes": WHOLE_DRAFT_NODES}
    return parse_config(data | {"drafter": None, "drafters": {}})


@app.command(cls=Command)
def main(
    drafters: Drafters,
    pair: Annotated[
        str, typer.Option(help="Pair whose target, search and questions are used.")
    ] = DEFAULT_PAIR,
    target: Annotated[
        Path | None, typer.Option(help="Another target, instead of the pair's.", metavar="DIR")
    ] = None,
    ngram: Annotated[
        Path | None, typer.Option(help="The n-gram model of that target.", metavar="FILE")
    ] = None,
    questions: Annotated[Path | None, typer.Option(metavar="FILE.jsonl")] = None,
    limit: Annotated[int | None, typer.Option(help="Questions per family.", min=1)] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Maximum length of an answer, in tokens.", min=1)
    ] = 96,
    whole_drafts: Annotated[
        bool,
        typer.Option("--whole-drafts", help="Verify whole drafts, not only the part that pays."),
    ] = False,
    steps: Annotated[
        list[int] | None,
        typer.Option(
            help="Denoising steps of a draft; may be repeated to compare several.", min=1, max=64
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
) -> None:
    """Compare diffusion LMs as drafters; print tables. Exits with 1 if tokens differ."""
    torch.set_num_threads(threads)
    sections = with_steps(name_drafters([parse_drafter(text) for text in drafters]), steps or [1])
    asked = load_questions(questions or find_pair(pair, "--pair").questions)
    asked = first_per_family(asked, limit)
    config = make_config(pair, target, ngram)
    found = compare(config, sections, asked, max_tokens, whole_drafts=whole_drafts)
    print_tables(found.tables(), describe_mismatches(found.mismatches), Console())
    raise typer.Exit(int(any(mismatch.fails(config.target.dtype) for mismatch in found.mismatches)))


if __name__ == "__main__":
    app()
