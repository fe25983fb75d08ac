"""The benchmark as it is called: from options to files and an exit code."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from diffuspec.bench import main
from diffuspec.bench.main import BenchOptions, run_benchmark
from diffuspec.bench.options import engine_config, system_names
from diffuspec.bench.studies.ablations import sweeps
from diffuspec.bench.systems.answer import Answer
from diffuspec.bench.systems.engine_system import EngineSystem
from diffuspec.bench.systems.naming import ALL_SYSTEMS
from diffuspec.core.errors import ConfigError
from diffuspec.engine.engine import Engine
from tests.bench.conftest import write_lines


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [
        {"question_id": 1, "category": "writing", "turns": ["hello", "more"]},
        {"question_id": 2, "category": "qa", "turns": ["who?"]},
        {"question_id": 3, "category": "qa", "turns": ["what?"]},
    ]
    return write_lines(tmp_path / "questions.jsonl", lines)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def options(pair: tuple[Path, Path], questions: Path, out: Path) -> BenchOptions:
    return BenchOptions(*pair, questions=questions, max_tokens=4, out=out)


def bench(options: BenchOptions, **given: Any) -> tuple[int, str]:
    """Run the benchmark; return the exit code and what it prints."""
    console = Console(file=io.StringIO(), width=100)
    code = run_benchmark(replace(options, **given), console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def found_in(path: Path) -> Any:
    return json.loads(path.read_text())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def systems_in(data: Any) -> list[str]:
    return [row["system"] for row in data["rows"] if row["family"] == "all"]


def test_a_run_writes_tables_figures_and_plots(options, tmp_path):
    out = tmp_path / "new" / "bench"
    threads = torch.get_num_threads()
    code, text = bench(options, limit=1, max_tokens=12, out=out)
    assert code == 0
    assert torch.get_num_threads() == threads
    plots = ["acceptance.png", "speedup.png", "time_share.png"]
    files = ["answers", "journal.jsonl", "results.json", "results.md"]
    assert names_in(out) == sorted([*plots, *files])
    data = found_in(out / "results.json")
    assert data["mismatches"] == []
    rows = {row["system"]: row for row in data["rows"] if row["family"] == "all"}
    assert tuple(rows) == ALL_SYSTEMS
    assert len({row["num_output_tokens"] for row in rows.values()}) == 1
    assert rows["plain"]["mean_acceptance_length"] == 1 < rows["paper"]["mean_acceptance_length"]
    assert {cost["num_prefix_tokens"] for cost in data["draft_costs"]} == {100}
    shapes = [found["tree_shape"] for found in data["step_overheads"]]
    assert shapes == ["path", "beams", "best_first"]
    assert "Speed over all families (2 questions, " in text
    assert "cost_aware_best_first" in (out / "results.md").read_text()


def test_the_suite_sets_every_system_that_the_target_has_beside_the_papers(options, out):
    code, text = bench(options, limit=1, max_tokens=6, suite="spec-bench")
    assert code == 0
    assert "Measured here: target on" in text and "Paper, Table 1: Qwen2.5-32B on an A100" in text
    assert "sps is missing: the target has no drafter of this kind." in text
    data = found_in(out / "results.json")
    systems = systems_in(data)
    assert systems[:5] == ["plain", "lookahead", "pld", "token_recycling", "samd"]
    assert {one["system"] for one in data["missing"]} >= {"sps"}
    assert {path.stem for path in (out / "answers").iterdir()} == set(systems)
    assert (out / "table_1.png").exists()
    low, high = data["rows"][0]["speedup_interval"]
    assert low == high == 1


def test_a_killed_run_goes_on_where_it_was(options, out, monkeypatch):
    options = replace(options, systems=("pld",), resume=True, suite="spec-bench")
    assert bench(options)[0] == 0
    journal = out / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:4]) + lines[4][:50])
    asked: list[str] = []
    right = EngineSystem.answer

    def count(self: EngineSystem, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        asked.append(self.name)
        return right(self, prompt_ids, max_tokens)

    monkeypatch.setattr(EngineSystem, "answer", count)
    assert bench(options)[0] == 0
    assert len(asked) == 2 + 2 * 4 - 3  # warm-up, and the answers that were not there
    assert [len(line) > 0 for line in journal.read_text().splitlines()] == [True] * len(lines)


def test_load_is_measured_with_speculation_on_and_off(options, out, monkeypatch):
    monkeypatch.setattr(main, "CONCURRENCIES", (1, 3))
    code, text = bench(options, load=True)
    assert code == 0 and "Answers that differ: 0." in text
    assert {*names_in(out)} >= {"load.json", "load.md", "load.png"}
    rows = found_in(out / "load.json")["rows"]
    found = [(row["system"], row["concurrency"], row["num_answers"]) for row in rows]
    assert found == [(name, n, 24) for n in (1, 3) for name in ("speculation", "off")]


def test_load_needs_questions_that_leave_room_for_an_answer(options):
    with pytest.raises(ConfigError, match="no question leaves room for an answer of 190 tokens"):
        bench(options, max_tokens=190, load=True)


def test_without_a_drafter_there_is_plain_decoding_and_transformers(options, out, tmp_path):
    trace = tmp_path / "trace.json"
    assert bench(options, drafter=None, limit=1, trace=trace)[0] == 0
    data = found_in(out / "results.json")
    assert systems_in(data) == ["plain", "transformers_greedy", "transformers_prompt_lookup"]
    assert data["draft_costs"] == data["step_overheads"] == []
    assert "verify" in [event["name"] for event in found_in(trace)]


def test_tokens_that_differ_end_in_exit_code_1(options, out, monkeypatch):
    right = EngineSystem.answer

    def wrong(self: EngineSystem, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        answer = right(self, prompt_ids, max_tokens)
        if self.name == "plain":
            return answer
        spoilt = (*answer.token_ids[:-1], 7)
        return Answer(spoilt, 1.0, answer.num_steps, answer.steps, answer.forward_seconds)

    monkeypatch.setattr(EngineSystem, "answer", wrong)
    code, text = bench(options, systems=("paper", "fixed_8_path"))
    assert code == 1
    assert "paper: 4 answers differ from plain's, first in question 1, turn 1, token 3." in text
    assert len(found_in(out / "results.json")["mismatches"]) == 2 * 4


def test_ablations_write_a_table_and_a_plot_per_sweep(options, out, monkeypatch):
    chosen = [sweep for sweep in sweeps() if sweep.name in ("beam_width", "draft_length")]
    monkeypatch.setattr(main, "sweeps", lambda: chosen)
    options = replace(options, limit=1, ablations=True)
    code, text = bench(options)
    assert code == 0
    assert "Draft length (Table 5)" in text and "CPS used the drafter's scores alone" in text
    plots = ["ablation_beam_width.png", "ablation_draft_length.png"]
    assert names_in(out) == [*plots, "ablations.json", "ablations.md", "journal.jsonl"]
    before = [(out / name).read_text() for name in ("ablations.md", "journal.jsonl")]
    assert bench(options, resume=True)[0] == 0
    after = [(out / name).read_text() for name in ("ablations.md", "journal.jsonl")]
    assert after == before, "nothing is measured again"
    data = found_in(out / "ablations.json")
    assert [len(sweep["variants"]) for sweep in data["sweeps"]] == [7, 5]
    assert data["mismatches"] == []


def test_the_pre_draft_study_writes_tables_and_a_plot(options, out):
    code, text = bench(options, limit=1, pre_drafts=True)
    assert code == 0
    assert "Hit rate of pre-drafts" in text and "8 pre-drafts" in text
    assert names_in(out) == ["pre_drafts.json", "pre_drafts.md", "pre_drafts.png"]
    data = found_in(out / "pre_drafts.json")
    assert list(data) == ["machine", "hit_rates", "overlap"]
    assert len(data["overlap"]) == 7


def test_plain_is_always_there_and_first():
    options = BenchOptions(systems=("paper", "fixed_8_path", "plain", "paper"))
    assert system_names(options, engine_config(options)) == ("plain", "paper", "fixed_8_path")


def test_a_study_loads_the_pairs_own_drafter_alone():
    assert "sps" in engine_config(BenchOptions()).drafters
    config = engine_config(BenchOptions(ablations=True))
    assert config.drafter == engine_config(BenchOptions()).drafter and config.drafters == {}


def test_one_request_runs_at_a_time(options, tmp_path):
    (tmp_path / "x.bin").touch()
    config = engine_config(replace(options, ngram=tmp_path / "x.bin"))
    assert config.target.max_sequences == 1
    assert (config.target.path, config.search.ngram) == (options.target, tmp_path / "x.bin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "--limit must be 1 or more, got 0"),
        ({"max_tokens": 0}, "--max-tokens must be 1 or more"),
        ({"repeats": -1}, "--repeats must be 1 or more"),
        ({"threads": 0}, "--threads must be 1 or more"),
        ({"drafter": Path("d")}, "--drafter needs --target"),
        ({"systems": ("falcon",)}, "--systems must be among .*pld.*samd.*token_recycling"),
        ({"target": Path("t"), "systems": ("paper",)}, "paper needs --drafter"),
        ({"target": Path("t"), "ngram": Path("n")}, "--ngram needs --drafter"),
        ({"target": Path("t"), "ablations": True}, "--ablations needs --drafter"),
        ({"target": Path("t"), "pre_drafts": True}, "--pre-drafts needs --drafter"),
        ({"ablations": True, "pre_drafts": True}, "run one at a time"),
        ({"ablations": True, "systems": ("paper",)}, "--systems has no effect on --ablations"),
        ({"pre_drafts": True, "systems": ("paper",)}, "--systems has no effect on --pre-drafts"),
        ({"ablations": True, "suite": "spec-bench"}, "--suite has no effect on --ablations"),
        ({"load": True, "resume": True}, "--resume has no effect on --load"),
        ({"suite": "mt"}, "--suite must be spec-bench, got 'mt'"),
        ({"target": Path("t"), "systems": ("sps",)}, "sps needs a drafter of that kind"),
        ({"pre_drafts": True, "repeats": 2}, "--repeats has no effect on --pre-drafts"),
        ({"questions": Path("none.jsonl")}, "cannot read questions from none.jsonl"),
    ],
)
def test_wrong_options_are_found_before_anything_is_loaded(options, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("t", "d"):
        Path(name).mkdir()
    Path("n").touch()
    monkeypatch.setattr(Engine, "from_config", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=message):
        run_benchmark(BenchOptions(**options))
    assert {path.name for path in tmp_path.iterdir()} == {"t", "d", "n"}, "nothing is written"


@pytest.mark.parametrize(
    "options", [{"systems": ("plain", "nope")}, {"questions": Path("none.jsonl")}], ids=str
)
def test_wrong_names_are_found_by_the_options_themselves(options):
    with pytest.raises(ConfigError, match=r"nope|none\.jsonl"):
        BenchOptions(**options)


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_loaded(options, monkeypatch):
    monkeypatch.setattr(Engine, "from_config", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=r"cannot write into .*questions\.jsonl"):
        bench(options, out=options.questions / "out")
