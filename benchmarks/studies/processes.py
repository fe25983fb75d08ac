"""`python -m benchmarks.studies.processes`: cost of roles in processes, speed-up of pre-drafts.

The same held-out questions are answered one at a time, in turns, by an engine in this process; by
an engine whose roles sleep while the other works; and by a pipeline, plainly, sequentially, and
with an increasing number of pre-drafted outcomes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table

from actors.pipeline import Pipeline
from actors.settings import PipelineConfig, load_pipeline
from benchmarks.studies.rested import rested
from benchmarks.studies.step_cost import StepCost, cost_table, median_ms, step_cost
from deploy import options
from deploy.local_ray import ray_cluster
from deploy.runs import Run, Streaming, answer, one_at_a_time, progress_bar
from deploy.tokens import given_token
from diffuspec.bench.plots import Line, plot_sweep, require_matplotlib
from diffuspec.bench.questions import Question, first_per_family, load_questions, rotated
from diffuspec.cli.command import Command
from diffuspec.cli.display import stdout_console
from diffuspec.core.config import EngineConfig
from diffuspec.core.params import SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import QUESTIONS

_OUT = Path("runs/cluster")
_FAN_OUTS = (1, 2, 4, 8)
_STAGES = ("step", "draft", "search", "verify", "transport")
_IN_PROCESS, _RESTED = "in process", "rested"
_PLAIN, _SEQUENTIAL, _PRE_DRAFTS = "plain", "sequential", "pre-drafts "

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Repeats = Annotated[
    int, typer.Option(metavar="N", min=1, help="Number of times each question is asked.")
]
_Length = Annotated[
    int, typer.Option(metavar="N", min=1, max=128, help="Draft length in all steps.")
]
_Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for results.json and the plot.")]


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one way of answering the questions."""

    system: str
    tokens_per_second: float
    speedup: float  # over the sequential pipeline
    mean_acceptance_length: float
    median_ms: dict[str, float]  # median by stage, over steps without prefill
    hit_rate: float | None
    verify_idle_share: float
    is_same: bool  # the tokens equal those of plain decoding


@app.command(cls=Command)
def run(
    config: options.Config = None,
    limit: options.NumPerFamily = 1,
    repeats: _Repeats = 3,
    max_tokens: options.MaxTokens = 128,
    draft_length: _Length = 20,
    out: _Out = _OUT,
    address: options.Address = "",
) -> None:
    """Compare a pipeline with the same roles in one process.

    Exits with 1 if tokens differ.
    """
    require_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    pipeline = one_at_a_time(load_pipeline(config or options.PIPELINE))
    asked = [q for q in first_per_family(load_questions(QUESTIONS), limit) if q.family != "code"]
    modes = _modes(pipeline, draft_length)
    # the thread count that the roles use
    torch.set_num_threads(pipeline.placement.verifier.num_threads)
    with ray_cluster(address, pipeline):
        measured = asyncio.run(_measure(pipeline, asked * repeats, modes, max_tokens))
    rows = [_row(name, measured.runs) for name in measured.runs if name != _RESTED]
    costs = _costs(measured.runs)
    _write(rows, costs, measured.link_bytes, out)
    console = stdout_console()
    console.print(_table(rows))
    console.print(cost_table(costs))
    console.print(_link_table(measured))
    console.print(f"written: {out}/results.json, {out}/overlap.png", soft_wrap=True)
    if not all(row.is_same for row in rows):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Measured:
    runs: dict[str, Run]
    link_bytes: dict[str, tuple[int, int]]  # (sent, received) over all steps, by link
    num_steps: int


def _modes(config: PipelineConfig, draft_length: int) -> dict[str, SpeculationParams]:
    alike = replace(
        config.engine.speculation, policy="fixed", num_draft_tokens=draft_length, num_outcomes=0
    )
    changes: dict[str, dict[str, Any]] = {
        _IN_PROCESS: {},
        _RESTED: {},
        _PLAIN: {"policy": "off"},
        _SEQUENTIAL: {},
    }
    changes |= {f"{_PRE_DRAFTS}{count}": {"num_outcomes": count} for count in (*_FAN_OUTS, "auto")}
    return {name: replace(alike, **change) for name, change in changes.items()}


async def _measure(
    config: PipelineConfig,
    questions: Sequence[Question],
    modes: Mapping[str, SpeculationParams],
    max_tokens: int,
) -> _Measured:
    runs = {name: Run() for name in modes}
    with (
        progress_bar() as progress,
        Engine.from_config(_in_process(config)) as engine,
    ):
        resting = rested(engine)
        task = progress.add_task("starting the actors", total=len(questions) * len(modes))
        async with Pipeline(config, given_token(config)) as pipeline:
            services: dict[str, Streaming] = {name: pipeline for name in modes}
            services |= {_IN_PROCESS: engine, _RESTED: resting}
            for name in modes:  # warm-up
                await answer(services[name], questions[0], modes[name], max_tokens, Run())
            before = await pipeline.link_bytes()
            for number, question in enumerate(questions):
                for name in rotated(modes, number):
                    progress.update(task, description=f"{question.family}, {name}")
                    await answer(services[name], question, modes[name], max_tokens, runs[name])
                    progress.advance(task)
            after = await pipeline.link_bytes()
            progress.update(task, description="stopping the actors")
        await engine.stop()
        await resting.stop()
    here = (_IN_PROCESS, _RESTED)
    num_steps = sum(len(run.steps) for name, run in runs.items() if name not in here)
    links = {
        name: (sent - before[name][0], received - before[name][1])
        for name, (sent, received) in after.items()
    }
    return _Measured(runs, links, num_steps)


def _in_process(config: PipelineConfig) -> EngineConfig:
    """Return the configuration of an engine with the same roles, run one after the other."""
    coordinator = config.engine.coordinator.model_copy(update={"overlap": False})
    return config.engine.model_copy(update={"coordinator": coordinator})


def _costs(runs: Mapping[str, Run]) -> dict[str, StepCost]:
    names = (_IN_PROCESS, _RESTED, _SEQUENTIAL)
    return {name: step_cost(runs[name].decoding, is_rested=name == _RESTED) for name in names}


def _row(name: str, runs: Mapping[str, Run]) -> Row:
    run, sequential = runs[name], runs[_SEQUENTIAL]
    return Row(
        system=name,
        tokens_per_second=run.tokens_per_second,
        speedup=sequential.seconds / run.seconds,
        mean_acceptance_length=run.stats.mean_acceptance_length,
        median_ms={stage: median_ms(run.decoding, stage) for stage in _STAGES},
        hit_rate=run.hit_rate,
        verify_idle_share=run.verify_idle_share,
        is_same=run.tokens == runs[_PLAIN].tokens,
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    titles = (
        "tokens/s",
        "speed-\nup",
        "accept.\nlength",
        *(f"{stage}\nms" for stage in _STAGES),
        "hit\nrate",
        "verify\nidle",
        "same\ntokens",
    )
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.system,
            f"{row.tokens_per_second:.0f}",
            f"{row.speedup:.2f}x",
            f"{row.mean_acceptance_length:.2f}",
            *(f"{row.median_ms[stage]:.1f}" for stage in _STAGES),
            "-" if row.hit_rate is None else f"{row.hit_rate:.0%}",
            f"{row.verify_idle_share:.0%}",
            "yes" if row.is_same else "NO",
        )
    return table


def _link_table(measured: _Measured) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("bytes per step", "sent", "received"):
        table.add_column(title, justify="left" if title.startswith("bytes") else "right")
    for name, (sent, received) in measured.link_bytes.items():
        steps = max(measured.num_steps, 1)
        table.add_row(name, f"{sent / steps:.0f}", f"{received / steps:.0f}")
    return table


def _write(
    rows: Sequence[Row],
    costs: Mapping[str, StepCost],
    link_bytes: Mapping[str, tuple[int, int]],
    out: Path,
) -> None:
    results = {
        "rows": [asdict(row) for row in rows],
        "step_ms": costs,
        "link_bytes": link_bytes,
    }
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    overlapped = [row for row in rows if row.system.startswith((_SEQUENTIAL, _PRE_DRAFTS))]
    xs = tuple(row.system.removeprefix(_PRE_DRAFTS).replace(_SEQUENTIAL, "0") for row in overlapped)
    panels = {
        "hit rate": [Line("measured", xs, tuple(row.hit_rate or 0.0 for row in overlapped))],
        "speed-up over sequential": [
            Line("measured", xs, tuple(row.speedup for row in overlapped))
        ],
        "idle share of the verifier": [
            Line("measured", xs, tuple(row.verify_idle_share for row in overlapped))
        ],
    }
    plot_sweep("Pre-drafting", "outcomes pre-drafted", panels, out / "overlap.png")


if __name__ == "__main__":
    app()
