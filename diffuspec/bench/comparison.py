"""A comparison of systems, from loading them to tables, plots and answer files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from diffuspec.bench import plots
from diffuspec.bench.journal import Journal
from diffuspec.bench.machine import Machine, describe_machine
from diffuspec.bench.options import BenchOptions, shared_config, table_systems
from diffuspec.bench.output import Advance, progress
from diffuspec.bench.overhead import (
    NUM_DRAFT_TOKENS,
    PREFIX_LENGTHS,
    DraftCost,
    StepOverhead,
    measure_step_overheads,
    sweep_draft_cost,
)
from diffuspec.bench.questions import Question, first_per_family
from diffuspec.bench.report import Results, notes, write_report
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
from diffuspec.bench.spec_bench.answers import write_answers
from diffuspec.bench.spec_bench.paper import PAPER_TITLE, bars_of, paper_bars, table_1
from diffuspec.bench.stats import acceptance_by_position, compute_rows
from diffuspec.bench.systems.naming import TREE_SHAPES
from diffuspec.bench.systems.opening import open_systems
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.engine.engine import Engine
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.loading.backend import resolve_device, resolve_dtype
from diffuspec.pairs import DEFAULT_PAIR
from diffuspec.telemetry.trace import tracing

OnAnswer = Callable[[Record], None]
JOURNAL = "journal.jsonl"


def run_comparison(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    names: Sequence[str],
    console: Console,
) -> int:
    """Compare the named systems; return 1 if tokens differ that must be equal, else 0."""
    own = shared_config(config, names)
    with tracing(options.trace) as tracer, Engine.from_config(own, tracer) as engine:
        machine = describe(engine)
        with contextlib.closing(open_journal(options, config, questions, names)) as journal:
            run = _compare(engine, config, names, questions, options, journal)
        overheads, costs = [], []
        if engine.lattice_model is not None and options.suite is None:
            Console(stderr=True).print("measuring drafting cost and overhead per step")
            overheads = _step_overheads(engine, questions, options)
            costs = _draft_costs(engine)
        records, decode = median_answers(run.records), ChatCodec(engine.tokenizer).decode
    results = Results(
        machine=machine,
        rows=tuple(compute_rows(records, names)),
        mismatches=tuple(find_mismatches(run.records)),
        skipped=run.skipped,
        draft_costs=tuple(costs),
        step_overheads=tuple(overheads),
        missing=table_systems(config)[1] if options.suite else {},
    )
    write_answers(options.out / "answers", _title(options), questions, records, decode)
    _report(options, results, records, console)
    return int(any(mismatch.fails(machine.dtype) for mismatch in results.mismatches))


def open_journal(
    options: BenchOptions,
    config: EngineConfig,
    questions: Sequence[Question],
    names: Sequence[str],
) -> Journal:
    """Open the journal in the results folder. Raises ConfigError if it belongs to another run."""
    asked = repr([(one.question_id, one.turns) for one in questions]).encode()
    plan = {
        "systems": list(names),
        "questions": hashlib.sha256(asked).hexdigest(),
        "max_tokens": options.max_tokens,
        "repeats": options.repeats,
        "whole_drafts": options.whole_drafts,
        "configuration": config.model_dump(mode="json"),
    }
    return Journal(options.out / JOURNAL, plan, options.resume)


def _compare(
    engine: Engine,
    config: EngineConfig,
    names: Sequence[str],
    questions: Sequence[Question],
    options: BenchOptions,
    journal: Journal,
) -> Run:
    codec, settings = ChatCodec(engine.tokenizer), settings_of(engine, options)
    whole_drafts, known = options.whole_drafts, dict(journal.records)
    num_turns = sum(len(question.turns) for question in questions)
    with (
        open_systems(engine, names, config, whole_drafts=whole_drafts) as systems,
        progress(num_turns * options.repeats * len(names)) as advance,
    ):
        warm_up(systems, questions, codec, settings)
        take = keep_and_announce(journal, advance)
        return run_questions(systems, questions, codec, settings, take, known)


def _report(
    options: BenchOptions, results: Results, records: Sequence[Record], console: Console
) -> None:
    plots.plot_speedup(results.rows, options.out / "speedup.png")
    plots.plot_time_share(results.rows, options.out / "time_share.png")
    if curves := acceptance_by_position(records):
        plots.plot_acceptance(curves, options.out / "acceptance.png")
    tables = results.tables()
    if options.suite:
        title = f"Measured here: {_title(options)} on {results.machine.cpu}"
        panels = {title: bars_of(results.rows), PAPER_TITLE: paper_bars()}
        plots.plot_panels(panels, "mean speed-up over plain decoding", options.out / "table_1.png")
        tables = [*table_1(results.rows, title), *tables]
    write_report(options.out, "results", results.to_json(), tables, notes(results), console)


def _title(options: BenchOptions) -> str:
    """Return the name of the target for answer files and tables."""
    return options.target.name if options.target is not None else options.pair or DEFAULT_PAIR


def _draft_costs(engine: Engine) -> list[DraftCost]:
    """Measure drafting by prefix length, with fresh drafters with and without a prefix cache."""
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
    """Measure the overhead per step of each tree shape, on one question of each family."""
    codec, settings = ChatCodec(engine.tokenizer), settings_of(engine, options)
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


def settings_of(engine: Engine, options: BenchOptions) -> RunSettings:
    return RunSettings(options.max_tokens, engine.verifier.info.max_model_len, options.repeats)


def describe(engine: Engine) -> Machine:
    target: Any = engine.verifier
    cache = target.runner.cache.store
    return describe_machine(cache.device, cache.dtype)


def describe_configured(config: EngineConfig) -> Machine:
    """Describe the machine as a target's device and dtype, loaded or not."""
    device = resolve_device(config.target.path, config.target.device)
    return describe_machine(device, resolve_dtype(config.target.dtype, device))


def keep_and_announce(journal: Journal, advance: Advance) -> OnAnswer:
    def take(record: Record) -> None:
        journal.add(record)
        advance(f"{record.family}, {record.system}")

    return take
