"""The commands that make and measure drafters."""

import json
from pathlib import Path

import pytest

from diffuspec.cli.training_options import parse_layers
from diffuspec.core.errors import ConfigError
from tests.cli.conftest import printed
from tests.pairs.factory.conftest import assert_drafts
from tests.support.checkpoints import save_target

NUM_ANSWERS = 44
SMALL = ["--device", "cpu", "--batch-tokens", "128"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    line = {"prompt": [60, 61], "answer": [*range(62, 72)]}
    path.write_text(f"{json.dumps(line)}\n" * NUM_ANSWERS)
    return path


def test_a_drafter_is_made_from_prompts_and_goes_on_after_its_end(
    diffuspec, target, tmp_path, monkeypatch
):
    monkeypatch.setattr("diffuspec.pairs.factory.answers.MAX_ANSWER_TOKENS", 12)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "drafter"
    lines = ({"prompt": f"question {i}"} for i in range(NUM_ANSWERS))
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = ["--target", target, "--prompts", prompts, "--num-answers", str(NUM_ANSWERS)]
    options += ["--layers", "1", *SMALL, "--out", out]
    first = diffuspec("drafter", "train", *options, "--chunks", "1")
    assert "acceptance" in printed(first) and "GiB" in first.stderr
    answers = out / "training" / "answers.jsonl"
    written = answers.read_bytes()
    assert written.count(b"\n") == NUM_ANSWERS
    with answers.open("ab") as file:
        file.write(b'{"prompt": [1')  # a writer was killed here
    again = printed(diffuspec("drafter", "train", *options, "--chunks", "2"))
    assert answers.read_bytes() == written
    curve = (out / "training" / "curve.jsonl").read_text().splitlines()
    assert [json.loads(point)["chunk"] for point in curve] == [1, 2]
    assert (out / "ngram.arpa").is_file()

    measured = printed(diffuspec("drafter", "evaluate", out, "--answers", answers))
    assert again.splitlines()[-1] in measured
    assert_drafts(target, {"path": out, "device": "cpu"})


@pytest.mark.parametrize(
    "options",
    ["--kind medusa", "--kind sps --layers 1", "--attention block_aligned --layers 1"],
)
def test_drafters_of_each_form_are_made_from_answers_and_measured(
    diffuspec, target, answers, tmp_path, options
):
    given = ["--target", target, "--answers", answers, "--out", tmp_path, "--chunks", "1"]
    made = printed(diffuspec("drafter", "train", *given, *SMALL, *options.split()))
    if "medusa" in options:
        assert "right so far by position" in made
        assert_drafts(target, {"kind": "medusa", "path": tmp_path})
        return
    assert (tmp_path / "ngram.arpa").exists() == ("sps" not in options)
    measured = printed(diffuspec("drafter", "evaluate", tmp_path, "--answers", answers))
    assert made.splitlines()[-1] in measured
    if "aligned" in options:
        explained = printed(diffuspec("model", "explain", tmp_path))
        assert "attention         block_aligned" in explained
        assert "block             8 tokens" in explained


def test_answers_are_written_to_a_folder_from_which_drafters_are_trained_on(
    diffuspec, target, tmp_path, monkeypatch
):
    monkeypatch.setattr("diffuspec.pairs.factory.answers.MAX_ANSWER_TOKENS", 4)
    prompts, folder, made = (tmp_path / name for name in ("prompts.jsonl", "answers", "drafter"))
    lines = (json.dumps({"prompt": [60, 61 + i]}) for i in range(NUM_ANSWERS))
    prompts.write_text("".join(f"{line}\n" for line in lines))
    given = ["--target", target, "--prompts", prompts, "--num-answers", str(NUM_ANSWERS)]
    written = printed(diffuspec("drafter", "answers", *given, "--out", folder, "--device", "cpu"))
    assert f"{NUM_ANSWERS} answers in 1 file" in written
    train = ["drafter", "train", "--target", target, "--answers", folder, *SMALL, "--chunks", "1"]
    diffuspec(*train, "--layers", "1", "--out", made)
    on = diffuspec(*train, "--start", made, "--out", tmp_path / "more")
    assert "before training: acceptance" in on.stderr and "rows/s" in printed(on)
    refused = diffuspec(*train, "--start", made, "--layers", "1", "--out", made)
    assert "give --layers or --start, not both" in refused.stderr


def test_a_target_without_a_question_to_answer_says_so(diffuspec, tmp_path):
    plain = save_target(tmp_path / "target", "llama")
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    result = diffuspec("drafter", "train", "--target", plain, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has no chat template to write questions from" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "taken"), [(None, 2), ("2", 2), ("1", 1), ("0,1", (0, 1)), ("1,3", None), ("3", None)]
)
def test_no_more_layers_are_taken_than_the_target_has(text, taken):
    if taken is None:
        with pytest.raises(ConfigError, match="the target has 2"):
            parse_layers(text, 10, 2)
    else:
        assert parse_layers(text, 10, 2) == taken


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "1,x"], "--layers must be a number or numbers separated by commas"),
        (["--layers", "3,2"], "--layers must be positive and ascending, got '3,2'"),
        (["--layers", "0"], "--layers must be positive"),
        (["--layers", "0,2"], "--layers: the target has 2 layers, counted from 0 to 1, got '0,2'"),
        (["--store", "int4"], "'--store': 'int4' is not one of 'bfloat16', 'int8'"),
        (["--attention", "sideways"], "'sideways' is not one of 'block_causal', 'block_ali"),
        (["--attention", "block_aligned", "--kind", "sps"], "no effect on --kind sps"),
        (
            ["--block-size", "6"],
            "--block-size 6 has no effect without --kind dflash or --attention",
        ),
        (["--kind", "oracle"], "'oracle' is not one of 'diffuspec', 'sps', 'medusa', 'hydra', "),
        (["--device", "tpu"], "--device must be auto, cpu or cuda, got 'tpu'"),
        (["--answers", "a.jsonl", "--prompts", "b.jsonl"], "give --answers or --prompts"),
        (["--answers", "missing.jsonl"], "there is no file missing.jsonl"),
    ],
)
def test_wrong_options_are_named(diffuspec, target, tmp_path, options, message):
    result = diffuspec("drafter", "train", "--target", target, "--out", tmp_path, *options)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]


def test_a_file_in_place_of_the_folder_is_named_before_any_answer(diffuspec, target, tmp_path):
    out = tmp_path / "file"
    out.touch()
    result = diffuspec("drafter", "train", "--target", target, "--out", out)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"error: cannot write into {out}: it is a file"
