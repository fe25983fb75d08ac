"""Schedule and resumption of a training."""

import pytest
import torch
from transformers import Qwen2ForCausalLM

from diffuspec.pairs.tiny.training.drafter import (
    draft_loss,
    drafter_config,
)
from diffuspec.pairs.tiny.training.optimisation import TrainingPlan, lr_scale, train
from tests.pairs.tiny.conftest import small


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    scales = [lr_scale(progress) for progress in (0.0, 0.03, 0.525, 1.0)]
    assert 0 < scales[0] < 0.1
    assert scales[1] == 1
    assert scales[2] == pytest.approx(0.5)
    assert scales[3] == 0


def test_training_resumes_where_it_stopped(encoder, tmp_path):
    def run(checkpoint, num_chunks):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(small(drafter_config()))
        plan = TrainingPlan(4, tokens_per_batch=128, report_every=1, stop_after=num_chunks)
        train(model, lambda b: draft_loss(model, b), lambda: "", encoder, plan, checkpoint)
        return model.state_dict()

    whole = run(tmp_path / "whole.pt", 2)
    run(tmp_path / "resumed.pt", 1)
    resumed = run(tmp_path / "resumed.pt", 2)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
