"""A drafter for a random target, trained in seconds; what it shares with trainings of heads."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from diffuspec.core.errors import ConfigError
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.pairs.factory.export import load_drafter
from diffuspec.pairs.factory.heads.training import HeadPlan, HeadTraining
from diffuspec.pairs.factory.training import DrafterPlan, DrafterTraining, read_curve
from tests.pairs.factory.conftest import assert_drafts
from tests.support import deadly_training
from tests.support.forked import forked


def make_plan(target: Path, out: Path, answers: Path, **more: Any) -> DrafterPlan:
    return DrafterPlan(
        target,
        out,
        (answers,),
        layers=1,
        num_chunks=8,
        tokens_per_batch=400,
        report_every=4,
        matrix_lr=0.05,
        other_lr=0.01,
        **more,
    )


@pytest.mark.slow
def test_a_drafter_learns_the_targets_answers(target, answers, tmp_path):
    training = DrafterTraining(make_plan(target, tmp_path, answers))
    before = training.measure()
    training.run()
    lines = (tmp_path / "training" / "curve.jsonl").read_text().splitlines()
    curve = [json.loads(line) for line in lines]
    assert curve[1]["loss"] < curve[0]["loss"] < 4
    assert training.measure().mean > before.mean + 0.5
    own = load_file(tmp_path / "model.safetensors")
    shared = ("model.layers.0.", "model.norm", "head_token_ids")
    assert all(name.startswith(shared) for name in own)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 1


@pytest.mark.slow
def test_a_causal_lm_learns_the_targets_answers(target, answers, tmp_path):
    plan = replace(make_plan(target, tmp_path, answers), kind="sps", num_chunks=6)
    training = DrafterTraining(plan)
    before = training.measure()
    training.run()
    assert training.measure().mean > before.mean + 0.5
    assert not inspect_checkpoint(tmp_path).is_diffusion
    assert_drafts(target, {"kind": "sps", "path": tmp_path, "device": "cpu"})


def make_heads_plan(target: Path, out: Path, answers: Path, **more: Any) -> HeadPlan:
    return HeadPlan("hydra", target, out, (answers,), 4, tokens_per_batch=300, **more)


TRAININGS = pytest.mark.parametrize(
    ("make", "training"), [(make_plan, DrafterTraining), (make_heads_plan, HeadTraining)]
)


@TRAININGS
def test_a_training_that_was_killed_goes_on_to_the_same_weights(
    make, training, target, answers, tmp_path
):
    def run(out: Path, stop_after: int) -> dict[str, torch.Tensor]:
        training(make(target, out, answers, stop_after=stop_after)).run()
        return load_file(out / "model.safetensors")

    whole = run(tmp_path / "whole", 2)
    run(tmp_path / "resumed", 1)
    resumed = run(tmp_path / "resumed", 2)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_a_training_that_is_killed_again_and_again_leaves_drafters_and_goes_on(
    target, answers, tmp_path
):
    out = tmp_path / "killed"
    deaths = (17, 8)  # in the second report and, from there, in the third: a drafter is there
    for number in (*deaths, 10**6):
        command = forked(deadly_training.__file__, target, answers, out, number)
        code = subprocess.run(command, check=False, timeout=300).returncode
        assert code == (-signal.SIGKILL if number in deaths else 0)
        load_drafter(out)
    whole = tmp_path / "whole"
    DrafterTraining(deadly_training.make_plan(target, answers, whole)).run()
    mine, its = (load_file(path / "model.safetensors") for path in (out, whole))
    assert all(torch.equal(mine[name], its[name]) for name in its)
    assert read_curve(out / "training" / "curve.jsonl")


def test_a_training_keeps_its_layers_and_its_mask(target, answers, tmp_path):
    begun = DrafterTraining(make_plan(target, tmp_path, answers)).start
    plan = replace(make_plan(target, tmp_path, answers), layers=begun.layers)
    assert DrafterTraining(plan).start == begun
    with pytest.raises(ConfigError, match=r"holds a training of the layers \[.\]: name these"):
        DrafterTraining(replace(plan, layers=(0, 1)))


@TRAININGS
def test_too_few_answers_are_refused(make, training, target, tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt": [1], "answer": [2]}\n')
    with pytest.raises(ConfigError, match="1 answers are too few"):
        training(make(target, tmp_path, path))
