"""The benchmark, from its options to an exit code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console

from diffuspec.bench import plots
from diffuspec.bench.call_costs import measure_costs
from diffuspec.bench.comparison import (
    describe,
    describe_configured,
    keep_and_announce,
    open_journal,
    run_comparison,
    settings_of,
)
from diffuspec.bench.options import CONCURRENCIES, BenchOptions, engine_config, system_names
from diffuspec.bench.output import make_folder, progress
from diffuspec.bench.planning.costs import add_costs
from diffuspec.bench.questions import Question, first_per_family, load_questions
from diffuspec.bench.report import (
    describe_mismatches,
    describe_skipped,
    write_report,
)
from diffuspec.bench.run import find_mismatches
from diffuspec.bench.sizes.run import run_sizes
from diffuspec.bench.studies.ablations import sweeps
from diffuspec.bench.studies.load import LoadPlan, load_tables, plot_load, study_load
from diffuspec.bench.studies.overlap import plot_overlap
from diffuspec.bench.studies.pre_drafts import study_pre_drafts
from diffuspec.bench.studies.sweeps import (
    ablation_config,
    distinct_settings,
    num_answers,
    run_settings,
    sweep_results,
)
from diffuspec.bench.systems.naming import BASELINE
from diffuspec.core.config import EngineConfig
from diffuspec.engine.engine import Engine
from diffuspec.pairs import DEFAULT_PAIR
from diffuspec.telemetry.trace import tracing

__all__ = ["BenchOptions", "run_benchmark"]


def run_benchmark(options: BenchOptions, console: Console | None = None) -> int:
    """Run, print tables, and write results and plots into options.out.

    Returns 0, or 1 if tokens differ that must be equal. Raises DiffuspecError; for invalid options
    and files, before any model is loaded.
    """
    console = console or Console()
    if options.sizes is not None:
        make_folder(options.out)
        with _threads(options.threads):
            return run_sizes(
                options.sizes,
                options.drafter_sizes,
                options.out,
                console,
                dtype=options.dtype,
                profiles=options.profile,
            )
    plots.require_matplotlib()
    config = engine_config(options)
    names = system_names(options, config)
    questions = load_questions(options.questions or options.chosen_pair.questions)
    questions = first_per_family(questions, options.limit)
    make_folder(options.out)
    with _threads(options.threads or options.default_threads):
        if options.ablations:
            return _run_ablations(options, config, questions, console)
        if options.pre_drafts:
            return _run_pre_drafts(options, config, questions, console)
        if options.load:
            return _run_load(options, config, questions, console)
        if options.costs:
            return _run_costs(options, config, console)
        return run_comparison(options, config, questions, names, console)


def _run_ablations(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    console: Console,
) -> int:
    chosen, config = sweeps(), ablation_config(config)
    measured = distinct_settings(chosen, config)
    names = [BASELINE, *(setting.name for setting in measured)]
    total = num_answers(len(measured), questions, options.repeats)
    with (
        tracing(options.trace) as tracer,
        Engine.from_config(config, tracer) as engine,
        contextlib.closing(open_journal(options, config, questions, names)) as journal,
        progress(total) as advance,
    ):
        machine, settings = describe(engine), settings_of(engine, options)
        take, known = keep_and_announce(journal, advance), dict(journal.records)
        run = run_settings(measured, engine, questions, settings, take, known)
    mismatches = find_mismatches(run.records)
    lines = describe_mismatches(mismatches)
    if config.search.ngram is None:
        lines.append("There is no n-gram model: CPS used the drafter's scores alone.")
    if run.skipped:
        lines.append(describe_skipped(run.skipped))
    results = sweep_results(chosen, measured, run)
    for result in results:
        result.plot(options.out / f"ablation_{result.sweep.name}.png")
    tables = [table for result in results for table in result.tables()]
    data = {
        "machine": asdict(machine),
        "sweeps": [result.to_json() for result in results],
        "mismatches": [asdict(mismatch) for mismatch in mismatches],
    }
    write_report(options.out, "ablations", data, tables, lines, console)
    return int(any(mismatch.fails(machine.dtype) for mismatch in mismatches))


def _run_pre_drafts(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    console: Console,
) -> int:
    with tracing(options.trace) as tracer, Engine.from_config(config) as engine:
        machine = describe(engine)
        tables, rows, data = study_pre_drafts(engine, questions, options.max_tokens, tracer)
    plot_overlap(rows, options.out / "pre_drafts.png")
    data = {"machine": asdict(machine), **data}
    write_report(options.out, "pre_drafts", data, tables, [], console)
    return 0


def _run_costs(options: BenchOptions, config: EngineConfig, console: Console) -> int:
    """Write costs.json, for `diffuspec plan`: those of target and drafter, beside other models'."""
    name = options.pair or (DEFAULT_PAIR if options.target is None else options.target.name)
    with Engine.from_config(config) as engine:
        machine = describe(engine)
        source = f"{machine.command_line}, {machine.cpu}, {machine.device}, {machine.date}"
        costs = asyncio.run(measure_costs(engine, name, source, machine.device))
    add_costs(options.out / "costs.json", costs)
    console.print(f"Written to {options.out / 'costs.json'}", highlight=False)
    return 0


def _run_load(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    console: Console,
) -> int:
    with tracing(options.trace) as tracer, Engine.from_config(config, tracer) as engine:
        machine = describe_configured(config)
        plan = LoadPlan(options.max_tokens, CONCURRENCIES, options.repeats, options.rounds)
        with progress(2 * options.repeats * len(CONCURRENCIES)) as advance:
            rows, num_different = study_load(engine, questions, plan, advance)
    plot_load(rows, options.out / "load.png")
    data: dict[str, Any] = {
        "machine": asdict(machine),
        "rows": [asdict(row) for row in rows],
    }
    tables, lines = load_tables(rows), [f"Answers that differ: {num_different}."]
    write_report(options.out, "load", data, tables, lines, console)
    return int(num_different > 0)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads. Engines must be created inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
