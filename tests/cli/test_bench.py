from pathlib import Path

import pytest

from diffuspec.bench.main import BenchOptions
from tests.cli.conftest import error_line


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BenchOptions]:
    """Collect what the benchmark is asked for instead of running it; tokens differ in it."""
    seen: list[BenchOptions] = []

    def run(options: BenchOptions) -> int:
        seen.append(options)
        return 1

    monkeypatch.setattr("diffuspec.bench.main.run_benchmark", run)
    return seen


def test_without_options_the_whole_benchmark_runs(diffuspec, asked):
    diffuspec("bench")
    assert asked == [BenchOptions()]


def test_every_option_is_passed_on(diffuspec, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("t", "d", "n.bin", "q.jsonl"):
        Path(name).touch()
    options = (
        "--target t --drafter d --ngram n.bin --questions q.jsonl --limit 2 --max-tokens 9"
        " --repeats 3 --threads 1 --out o --trace t.json --systems plain,paper"
        " --suite spec-bench --whole-drafts --resume"
    )
    diffuspec("bench", *options.split())
    assert asked == [
        BenchOptions(
            target=Path("t"),
            drafter=Path("d"),
            ngram=Path("n.bin"),
            questions=Path("q.jsonl"),
            limit=2,
            max_tokens=9,
            repeats=3,
            threads=1,
            out=Path("o"),
            trace=Path("t.json"),
            systems=("plain", "paper"),
            suite="spec-bench",
            whole_drafts=True,
            resume=True,
        )
    ]


@pytest.mark.parametrize("study", ["ablations", "pre_drafts", "costs"])
def test_studies_are_asked_for_by_a_flag(diffuspec, asked, study):
    diffuspec("bench", f"--{study.replace('_', '-')}")
    assert asked == [BenchOptions(**{study: True})]  # type: ignore[arg-type]


def test_the_study_of_load_has_options_of_its_own(diffuspec, asked):
    diffuspec("bench", "--load", "--rounds", "20")
    assert asked == [BenchOptions(load=True, rounds=20)]


def test_exit_code_is_that_of_the_benchmark(diffuspec, asked):
    assert diffuspec("bench").exit_code == 1


def test_wrong_options_are_named(diffuspec, asked):
    result = diffuspec("bench", "--limit", "0")
    assert error_line(result).startswith("--limit must be greater than or equal to 1, got '0'")
    result = diffuspec("bench", "--rounds", "9")
    assert error_line(result) == "--rounds has no effect without --load"


def test_sizes_are_those_of_configurations(diffuspec, asked):
    diffuspec("bench", *["--sizes", "SmolLM2-135M", "--drafter-sizes", "d.json", "--profile"])
    assert asked == [
        BenchOptions(sizes=Path("SmolLM2-135M"), drafter_sizes=Path("d.json"), profile=True)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--profile", "--profile needs --sizes"),
        ("--drafter-sizes d", "--drafter-sizes needs --sizes"),
        ("--sizes s --limit 3", "--limit has no effect on --sizes"),
        ("--sizes s --costs", "--costs and --sizes are 2 studies"),
    ],
)
def test_options_that_sizes_ignore_are_refused(diffuspec, asked, options, message):
    assert message in error_line(diffuspec("bench", *options.split()))
    assert not asked
