"""Schedule and resumption of a training."""

from unittest.mock import patch

import pytest
import torch

from diffuspec.pairs.factory.optimisation import TrainingPlan, lr_scale, train


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    scales = [lr_scale(progress) for progress in (0.0, 0.03, 0.525, 1.0)]
    assert 0 < scales[0] < 0.1
    assert scales[1] == 1
    assert scales[2] == pytest.approx(0.5)
    assert scales[3] == 0
    assert lr_scale(0.55, decay_share=0.4) == 1


def test_training_resumes_where_it_stopped(tmp_path):
    def run(checkpoint, num_chunks):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        model[2].weight.requires_grad_(False)
        train(
            model,
            lambda chunk: [torch.full((2, 4), chunk + 1.0), torch.ones(2, 4)],
            lambda batch: model(batch).square().mean(),
            lambda done: f"{done.chunk}",
            TrainingPlan(4, report_every=1, stop_after=num_chunks),
            checkpoint,
        )
        return model.state_dict()

    whole = run(tmp_path / "whole.pt", 3)
    run(tmp_path / "resumed.pt", 1)
    resumed = run(tmp_path / "resumed.pt", 3)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_training_planned_in_seconds_ends_in_time_and_counts_all_its_processes(tmp_path):
    rates, reports = [], []

    def record(progress, share):
        rates.append(progress)
        return 1.0

    def run(seconds, stop_after=None):
        now = iter(range(1000))  # a chunk takes a second
        model = torch.nn.Linear(2, 2, bias=False)

        def loss_of(batch):
            return model(batch).square().mean()

        def report(done):
            reports.append((done.chunk, done.seconds))
            return ""

        plan = TrainingPlan(1, decay_share=1.0, stop_after=stop_after, seconds=seconds)
        batches = [torch.ones(1, 2)]
        with patch("diffuspec.pairs.factory.optimisation.lr_scale", record):
            clock = lambda: float(next(now))  # noqa: E731
            train(model, lambda chunk: batches, loss_of, report, plan, tmp_path / "a.pt", clock)

    run(10.0, stop_after=4)
    stopped = len(rates)
    run(10.0)
    assert rates == sorted(rates) and rates[0] == 0 and rates[-1] < 1
    assert rates[stopped] >= rates[stopped - 1] > 0
    assert reports[-1][1] >= 10
