"""The most probable columns of logits: by a kernel, as by torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from diffuspec.models.kernels import operations
from diffuspec.models.kernels.largest import most_probable
from tests.support.rounding import EPS


def logprob_error(logprobs: torch.Tensor, log_sum: torch.Tensor) -> torch.Tensor:
    """The largest error of float32 logprobs [N, V], whatever the order of sums.

    Errors of terms and of their sum are relative, so that those of its logarithm are absolute:
    one rounding for each addition, and a few for a term. Then the logarithm, the sum with the
    highest logit and the difference are rounded.
    """
    width = logprobs.shape[1]
    num_roundings = width + math.log(width) + 8
    return EPS / 2 * (num_roundings + 2 * log_sum.abs() + 2 * logprobs.abs())


@pytest.mark.parametrize("is_available", [True, False])
@pytest.mark.parametrize("width", [1, 5, 63, 64, 65, 200, 4096])
@pytest.mark.parametrize("count", [1, 15, 64])
def test_they_are_those_of_float64_within_rounding(
    monkeypatch, is_available: bool, width: int, count: int
):
    monkeypatch.setattr(operations, "is_available", is_available and operations.is_available)
    logits = 5 * torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    columns, found = most_probable(logits, count)
    assert columns.dtype == np.int32 and found.dtype == np.float32
    assert columns.shape == found.shape == (7, min(count, width))
    exact = logits.double().log_softmax(dim=-1)
    error = logprob_error(exact, logits.double().logsumexp(dim=-1, keepdim=True))
    chosen = torch.from_numpy(columns).long()
    assert torch.equal(logits.gather(1, chosen), logits.topk(min(count, width)).values)
    difference = torch.from_numpy(found).double() - exact.gather(1, chosen)
    assert (difference.abs() <= error.gather(1, chosen)).all()
    assert all(len(set(row)) == len(row) for row in columns.tolist())


def test_of_equal_numbers_the_first_come_first():
    columns, _ = most_probable(torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0]]), 4)
    if operations.is_available:
        assert columns.tolist() == [[1, 3, 0, 2]]
    assert set(columns[0, :2].tolist()) == {1, 3}


def test_what_is_ruled_out_has_no_probability_and_comes_last():
    logits = torch.full((1, 100), -torch.inf)
    logits[0, [70, 3]] = torch.tensor([1.0, 2.0])
    columns, logprobs = most_probable(logits, 4)
    assert columns[0, :2].tolist() == [3, 70]
    np.testing.assert_allclose(np.exp(logprobs[0]), [0.731059, 0.268941, 0, 0], atol=1e-5)


@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_have_no_probabilities(place: int, number: float):
    logits = torch.zeros(1, 100)
    logits[0, place] = number
    _, logprobs = most_probable(logits, 3)
    assert np.isnan(logprobs[0, 0])


def test_a_row_that_is_ruled_out_as_a_whole_has_none_either():
    assert np.isnan(most_probable(torch.full((1, 9), -torch.inf), 2)[1]).all()
