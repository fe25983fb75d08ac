"""The commands that make and measure drafters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuspec.core.params import SpeculationParams
from diffuspec.engine import Engine
from diffuspec.pairs import parse_config
from tests.support.checkpoints import save_target

Run = Callable[..., Any]
NUM_ANSWERS = 44
FIXED = SpeculationParams(policy="fixed")  # the default drafts only where that is faster


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


def test_a_drafter_is_made_from_prompts_and_goes_on_after_its_end(
    diffuspec: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuspec.pairs.factory.answers.MAX_ANSWER_TOKENS", 12)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "drafter"
    lines = ({"prompt": f"question {i}"} for i in range(NUM_ANSWERS))
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = ["--target", target, "--prompts", prompts, "--num-answers", str(NUM_ANSWERS)]
    options += ["--layers", "1", "--batch-tokens", "128", "--device", "cpu", "--out", out]
    first = diffuspec("drafter", "train", *options, "--chunks", "1")
    assert first.exit_code == 0, first.stderr
    assert "GiB" in first.stderr and "acceptance" in first.stdout
    answers = out / "training" / "answers.jsonl"
    written = answers.read_bytes()
    assert written.count(b"\n") == NUM_ANSWERS
    with answers.open("ab") as file:
        file.write(b'{"prompt": [1')  # a writer was killed here
    again = diffuspec("drafter", "train", *options, "--chunks", "2")
    assert again.exit_code == 0, again.stderr
    assert answers.read_bytes() == written
    curve = (out / "training" / "curve.jsonl").read_text().splitlines()
    assert [json.loads(point)["chunk"] for point in curve] == [1, 2]
    assert (out / "ngram.arpa").is_file()

    measured = diffuspec("drafter", "evaluate", out, "--answers", answers)
    assert again.stdout.splitlines()[-1] in measured.stdout

    config = parse_config(
        {"target": {"path": target, "device": "cpu"}, "drafter": {"path": out, "device": "cpu"}}
    )
    with Engine.from_config(config) as engine:
        [answer] = engine.generate(["question 1"], speculation=FIXED)
    assert answer.stats.num_drafts > 0


def test_draft_heads_are_made_from_answers(diffuspec: Run, target: Path, tmp_path: Path) -> None:
    answers, out = tmp_path / "answers.jsonl", tmp_path / "heads"
    line = {"prompt": [60, 61], "answer": [*range(62, 72)]}
    answers.write_text(f"{json.dumps(line)}\n" * NUM_ANSWERS)
    options = ["--target", target, "--answers", answers, "--out", out, "--chunks", "1"]
    made = diffuspec("drafter", "train", *options, "--kind", "medusa")
    assert made.exit_code == 0, made.stderr
    assert "right so far by position" in made.stdout
    section = {"kind": "medusa", "path": out}
    with Engine.from_config(
        parse_config({"target": {"path": target, "device": "cpu"}, "drafter": section})
    ) as engine:
        [answer] = engine.generate(["question 1"], speculation=FIXED)
    assert answer.stats.num_drafts > 0
    wrong = diffuspec("drafter", "train", *options, "--kind", "oracle")
    assert (
        "--kind must be among diffuspec, sps, medusa, hydra, eagle, dflash, got 'oracle'"
        in wrong.stderr
    )


def test_a_causal_lm_is_made_from_answers(diffuspec: Run, target: Path, tmp_path: Path) -> None:
    answers, out = tmp_path / "answers.jsonl", tmp_path / "small"
    line = {"prompt": [60, 61], "answer": [*range(62, 72)]}
    answers.write_text(f"{json.dumps(line)}\n" * NUM_ANSWERS)
    options = ["--target", target, "--out", out, "--layers", "1", "--chunks", "1"]
    made = diffuspec("drafter", "train", *options, "--answers", answers, "--kind", "sps")
    assert made.exit_code == 0, made.stderr
    assert not (out / "ngram.arpa").exists()
    measured = diffuspec("drafter", "evaluate", out, "--answers", answers)
    assert made.stdout.splitlines()[-1] in measured.stdout


def test_an_aligned_drafter_is_made_and_measured(
    diffuspec: Run, target: Path, tmp_path: Path
) -> None:
    answers, out = tmp_path / "answers.jsonl", tmp_path / "aligned"
    line = {"prompt": [60, 61], "answer": [*range(62, 72)]}
    answers.write_text(f"{json.dumps(line)}\n" * NUM_ANSWERS)
    options = ["--target", target, "--out", out, "--layers", "1", "--chunks", "1"]
    options += ["--attention", "block_aligned", "--answers", answers]
    made = diffuspec("drafter", "train", *options)
    assert made.exit_code == 0, made.stderr
    measured = diffuspec("drafter", "evaluate", out, "--answers", answers)
    assert made.stdout.splitlines()[-1] in measured.stdout
    explained = diffuspec("model", "explain", out)
    assert "attention         block_aligned" in explained.stdout
    assert "block             8 tokens" in explained.stdout


def test_a_target_without_a_question_to_answer_says_so(diffuspec: Run, tmp_path: Path) -> None:
    plain = save_target(tmp_path / "target", "llama")
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    result = diffuspec("drafter", "train", "--target", plain, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has no chat template to write questions from" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "1,x"], "--layers must be a number or numbers separated by commas"),
        (["--layers", "3,2"], "--layers must be positive and ascending, got '3,2'"),
        (["--layers", "0"], "--layers must be positive"),
        (["--store", "int4"], "--store must be bfloat16 or int8, got 'int4'"),
        (["--attention", "sideways"], "--attention must be block_causal or block_aligned, got 's"),
        (["--attention", "block_aligned", "--kind", "sps"], "no effect on --kind sps"),
        (
            ["--block-size", "6"],
            "--block-size 6 has no effect without --kind dflash or --attention",
        ),
        (["--device", "tpu"], "--device must be auto, cpu or cuda, got 'tpu'"),
        (["--answers", "a.jsonl", "--prompts", "b.jsonl"], "give --answers or --prompts"),
        (["--answers", "missing.jsonl"], "there is no file missing.jsonl"),
    ],
)
def test_wrong_options_are_named(
    diffuspec: Run, target: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    result = diffuspec("drafter", "train", "--target", target, "--out", tmp_path, *options)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]
