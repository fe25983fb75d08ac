"""The benchmark, from its options to an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console

from diffuspec.bench import plots
from diffuspec.bench.machine import Machine, describe_machine
from diffuspec.bench.options import CONCURRENCIES, BenchOptions, engine_config, system_names
from diffuspec.bench.output import Advance, make_folder, progress
from diffuspec.bench.overhead import (
    NUM_DRAFT_TOKENS,
    PREFIX_LENGTHS,
    DraftCost,
    StepOverhead,
    measure_step_overheads,
    sweep_draft_cost,
)
from diffuspec.bench.questions import Question, first_per_family, load_questions
from diffuspec.bench.report import (
    Results,
    describe_mismatches,
    describe_skipped,
    notes,
    print_tables,
    write_report,
)
from diffuspec.bench.run import (
    ChatCodec,
    Record,
    Run,
    RunSettings,
    find_mismatches,
    median_answers,
    run_questions,
    warm_up,
)
from diffuspec.bench.stats import acceptance_by_position, compute_rows
from diffuspec.bench.studies.ablations import sweeps
from diffuspec.bench.studies.load import load_tables, plot_load, study_load
from diffuspec.bench.studies.overlap import plot_overlap
from diffuspec.bench.studies.pre_drafts import study_pre_drafts
from diffuspec.bench.studies.sweeps import ablation_config, num_answers, run_sweep
from diffuspec.bench.systems import TREE_SHAPES, open_systems
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.engine import Engine
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.telemetry.trace import tracing

__all__ = ["BenchOptions", "run_benchmark"]

OnAnswer = Callable[[Record], None]


def run_benchmark(options: BenchOptions, console: Console | None = None) -> int:
    """Run, print tables, and write results and plots into options.out.

    Returns 0, or 1 if tokens differ that must not. Raises DiffuspecError, for wrong options and
    files before any model is loaded.
    """
    console = console or Console()
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
        return _run_comparison(options, config, questions, names, console)


def _run_comparison(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    names: Sequence[str],
    console: Console,
) -> int:
    with tracing(options.trace) as tracer, Engine.from_config(config, tracer) as engine:
        machine = _machine(engine)
        num_turns = sum(len(question.turns) for question in questions)
        with progress(num_turns * options.repeats * len(names)) as advance:
            run = _compare(engine, names, questions, options, _on_answer(advance))
        overheads, costs = [], []
        if engine.lattice_model is not None:
            Console(stderr=True).print("measuring drafting cost and overhead per step")
            overheads = _step_overheads(engine, questions, options)
            costs = _draft_costs(engine)
    records = median_answers(run.records)
    results = Results(
        machine=machine,
        rows=tuple(compute_rows(records, names)),
        mismatches=tuple(find_mismatches(run.records)),
        skipped=run.skipped,
        draft_costs=tuple(costs),
        step_overheads=tuple(overheads),
    )
    plots.plot_speedup(results.rows, options.out / "speedup.png")
    plots.plot_time_share(results.rows, options.out / "time_share.png")
    if curves := acceptance_by_position(records):
        plots.plot_acceptance(curves, options.out / "acceptance.png")
    write_report(options.out, "results", results.to_json(), results.tables(), notes(results))
    print_tables(results.tables(), notes(results), console)
    console.print(f"Written to {options.out}", highlight=False)
    return int(any(mismatch.is_failure for mismatch in results.mismatches))


def _compare(
    engine: Engine,
    names: Sequence[str],
    questions: Sequence[Question],
    options: BenchOptions,
    on_answer: OnAnswer,
) -> Run:
    codec, settings = ChatCodec(engine.tokenizer), _settings(engine, options)
    with open_systems(engine, names) as systems:
        warm_up(systems, questions, codec, settings)
        return run_questions(systems, questions, codec, settings, on_answer)


def _draft_costs(engine: Engine) -> list[DraftCost]:
    """Measure drafting by prefix length, on fresh drafters with and without a prefix cache."""
    info, config = engine.verifier.info, engine.config.drafter
    assert isinstance(config, DiffuSpecConfig), "others have no prefix cache to measure"
    lengths = [n for n in PREFIX_LENGTHS if n + NUM_DRAFT_TOKENS <= info.max_model_len]
    costs = []
    for cached, num_rounds, num_runs in ((True, 6, 5), (False, 3, 1)):
        model = DiffusionDrafter.load(config.model_copy(update={"prefix_cache": cached}), info)
        with contextlib.closing(model):
            costs += sweep_draft_cost(
                model,
                lengths,
                prefix_cache=cached,
                vocab_size=info.vocab_size,
                num_rounds=num_rounds,
                runs_per_round=num_runs,
            )
    return costs


def _step_overheads(
    engine: Engine, questions: Sequence[Question], options: BenchOptions
) -> list[StepOverhead]:
    """Measure the overhead per step for each tree shape, over one question of each family."""
    codec, settings = ChatCodec(engine.tokenizer), _settings(engine, options)
    sample = first_per_family(questions, 1)
    prompts = [codec.encode([{"role": "user", "content": q.turns[0]}]) for q in sample]
    prompts = [p for p in prompts if len(p) + settings.max_tokens <= settings.max_model_len]
    if not prompts:
        return []
    names = {f"fixed_{NUM_DRAFT_TOKENS}_{shape}": shape for shape in TREE_SHAPES}
    with open_systems(engine, list(names)) as systems:
        by_shape = {names[system.name]: system for system in systems}
        return measure_step_overheads(
            by_shape, NUM_DRAFT_TOKENS, prompts, settings.max_tokens, num_rounds=3
        )


def _run_ablations(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    console: Console,
) -> int:
    chosen = sweeps()
    results = []
    config = ablation_config(config)
    with tracing(options.trace) as tracer, Engine.from_config(config, tracer) as engine:
        machine, settings = _machine(engine), _settings(engine, options)
        total = num_answers(chosen, questions, options.repeats)
        with progress(total) as advance:
            for sweep in chosen:
                on_answer = _on_answer(advance)
                results.append(run_sweep(sweep, engine, questions, settings, on_answer))
    for result in results:
        result.plot(options.out / f"ablation_{result.sweep.name}.png")
    tables = [table for result in results for table in result.tables()]
    mismatches = [mismatch for result in results for mismatch in result.mismatches]
    lines = describe_mismatches(mismatches)
    if config.search.ngram is None:
        lines.append("There is no n-gram model: CPS used the drafter's scores alone.")
    if skipped := results[0].skipped:
        lines.append(describe_skipped(skipped))
    data = {"machine": asdict(machine), "sweeps": [result.to_json() for result in results]}
    write_report(options.out, "ablations", data, tables, lines)
    print_tables(tables, lines, console)
    console.print(f"Written to {options.out}", highlight=False)
    return int(any(mismatch.is_failure for mismatch in mismatches))


def _run_pre_drafts(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    console: Console,
) -> int:
    with tracing(options.trace) as tracer, Engine.from_config(config) as engine:
        machine = _machine(engine)
        tables, rows, data = study_pre_drafts(engine, questions, options.max_tokens, tracer)
    plot_overlap(rows, options.out / "pre_drafts.png")
    write_report(options.out, "pre_drafts", {"machine": asdict(machine), **data}, tables, [])
    print_tables(tables, [], console)
    console.print(f"Written to {options.out}", highlight=False)
    return 0


def _run_load(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    console: Console,
) -> int:
    with tracing(options.trace) as tracer, Engine.from_config(config, tracer) as engine:
        machine = _machine(engine)
        with progress(2 * options.repeats * len(CONCURRENCIES)) as advance:
            rows, num_different = study_load(
                engine, questions, options.max_tokens, options.repeats, CONCURRENCIES, advance
            )
    plot_load(rows, options.out / "load.png")
    data = {"machine": asdict(machine), "rows": [asdict(row) for row in rows]}
    tables, lines = load_tables(rows), [f"Answers that differ: {num_different}."]
    write_report(options.out, "load", data, tables, lines)
    print_tables(tables, lines, console)
    console.print(f"Written to {options.out}", highlight=False)
    return int(num_different > 0)


def _settings(engine: Engine, options: BenchOptions) -> RunSettings:
    return RunSettings(options.max_tokens, engine.verifier.info.max_model_len, options.repeats)


def _machine(engine: Engine) -> Machine:
    target: Any = engine.verifier
    cache = target.runner.cache
    return describe_machine(cache.device, cache.dtype)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads; engines must be created inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_answer(advance: Advance) -> OnAnswer:
    return lambda record: advance(f"{record.family}, {record.system}")
