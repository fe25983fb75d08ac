"""`python -m deploy.demo`: a pipeline on a Ray cluster, and the speed-up of drafts and pre-drafts.

The same held-out questions are answered in three modes, in turns: plain, drafted, and drafted with
overlap. The tokens must be equal.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from actors.pipeline import Pipeline
from actors.role_reports import RoleReport
from actors.settings import PipelineConfig, load_pipeline
from deploy import options
from deploy.local_ray import ray_cluster
from deploy.runs import Run, answer, one_at_a_time, progress_bar
from deploy.tokens import given_token
from diffuspec.bench.questions import Question, first_per_family, load_questions, rotated
from diffuspec.cli.command import Command
from diffuspec.cli.display import stdout_console
from diffuspec.core.params import SpeculationParams
from diffuspec.pairs.tiny import QUESTIONS

_TRACE = Path("runs/demo/trace.json")
_PLAIN, _SEQUENTIAL, _OVERLAPPED = ("plain", "sequential", "overlapped")
_LEGEND = (
    f"{_PLAIN}: no drafts; {_SEQUENTIAL}: a draft, then its verification; {_OVERLAPPED}: the next "
    "drafts are made while one is verified"
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Questions = Annotated[
    Path,
    typer.Option(
        metavar="FILE.jsonl",
        help="Questions in Spec-Bench's format. Default: the held-out questions of the "
        "embedded pair.",
        show_default=False,
    ),
]
_Repeats = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Number of times each question is asked in each mode."),
]
_Trace = Annotated[
    Path,
    typer.Option(
        metavar="FILE.json", help="File for a timeline of all roles, for ui.perfetto.dev."
    ),
]


@app.command(cls=Command)
def run(
    config: options.Config = None,
    questions: _Questions = QUESTIONS,
    limit: options.NumPerFamily = 1,
    repeats: _Repeats = 2,
    max_tokens: options.MaxTokens = 128,
    trace: _Trace = _TRACE,
    address: options.Address = "",
) -> None:
    """Place a pipeline on a Ray cluster and compare plain, drafted and overlapped decoding.

    Exits with 1 if tokens differ.
    """
    trace.parent.mkdir(parents=True, exist_ok=True)
    pipeline = _pipeline(config).model_copy(update={"trace": trace.absolute()})
    asked = first_per_family(load_questions(questions), limit)
    console = stdout_console()
    with ray_cluster(address, pipeline):
        runs = asyncio.run(_measure(pipeline, asked, repeats, max_tokens, console))
    is_same = all(run.tokens == runs[_PLAIN].tokens for run in runs.values())
    console.print(_table(pipeline, runs))
    console.print(_LEGEND, soft_wrap=True)
    console.print(f"same tokens: {'yes' if is_same else 'NO'}")
    console.print(f"trace: {trace} (open it in https://ui.perfetto.dev)", soft_wrap=True)
    if not is_same:
        raise typer.Exit(1)


def _pipeline(path: Path | None) -> PipelineConfig:
    """Read a pipeline; None: the default one, for one request at a time."""
    if path is not None:
        return load_pipeline(path)
    return one_at_a_time(load_pipeline(options.PIPELINE))


async def _measure(
    config: PipelineConfig,
    questions: Sequence[Question],
    repeats: int,
    max_tokens: int,
    console: Console,
) -> dict[str, Run]:
    """Answer all questions in all modes, in turns and one at a time."""
    runs: dict[str, Run] = defaultdict(Run)
    modes = _speculations(config)
    total = len(questions) * repeats * len(modes)
    with progress_bar() as progress:
        task = progress.add_task("starting the actors", total=total)
        async with Pipeline(config, given_token(config)) as pipeline:
            console.print(_places(await pipeline.describe()))
            for reason in (await pipeline.status()).degraded_reasons:
                console.print(f"degraded: {reason}")
            for mode in modes:  # a warm-up, in which costs are learnt
                await answer(pipeline, questions[0], modes[mode], max_tokens, Run())
            for number in range(repeats):
                for question in questions:
                    for mode in rotated(modes, number):
                        progress.update(task, description=f"{question.family}, {mode}")
                        await answer(pipeline, question, modes[mode], max_tokens, runs[mode])
                        progress.advance(task)
            progress.update(task, description="stopping the actors")
    return {mode: runs[mode] for mode in modes}


def _speculations(config: PipelineConfig) -> dict[str, SpeculationParams]:
    default = config.engine.speculation
    return {
        _PLAIN: replace(default, policy="off"),
        _SEQUENTIAL: replace(default, num_outcomes=0),
        _OVERLAPPED: default,
    }


def _places(reports: Sequence[RoleReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("actor", "node", "process", "GPUs", "gRPC"):
        table.add_column(title, no_wrap=True)
    for report in reports:
        place = report.place
        where = ("-", "-", "-")
        if place is not None:
            gpus = ", ".join(place.gpu_ids) or "-"
            where = (f"{place.ip} {place.node_id[:6]}", str(place.pid), gpus)
        table.add_row(report.name, *where, report.address or "-")
    return table


def _table(config: PipelineConfig, runs: dict[str, Run]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in (
        "tokens/s",
        "speed-up",
        "acceptance\nlength",
        "pre-draft\nhit rate",
        "verifier\nidle",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    plain = runs[_PLAIN].seconds
    for mode, run in runs.items():
        table.add_row(
            mode,
            f"{run.tokens_per_second:.0f}",
            f"{plain / run.seconds:.2f}x",
            f"{run.stats.mean_acceptance_length:.2f}",
            "-" if run.hit_rate is None else f"{run.hit_rate:.0%}",
            f"{run.verify_idle_share:.0%}",
        )
    return table


if __name__ == "__main__":
    app()
