"""The compiled operations compute what torch's own do, for each row alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from diffuspec.models.kernels import _cpu, operations
from diffuspec.models.kernels.operations import most_probable
from tests.support.rounding import EPS

DTYPES = pytest.mark.parametrize("dtype", operations.TYPES, ids=str)
WIDTHS = pytest.mark.parametrize("width", [8, 64, 83])


def random_rows(num_rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, width, generator=random).mul(3).to(dtype)


def is_near(found: torch.Tensor, expected: torch.Tensor, error_of_sums: float = 0.0) -> bool:
    tolerance = 4 * torch.finfo(found.dtype).eps + error_of_sums
    return torch.allclose(found, expected, tolerance, tolerance)


@DTYPES
@WIDTHS
def test_a_norm_is_transformers_own(dtype: torch.dtype, width: int) -> None:
    rows, norm = random_rows(5, width, dtype), LlamaRMSNorm(width, 1e-5).to(dtype)
    norm.weight.data = random_rows(1, width, dtype, 1)[0]
    found = operations.norm(rows, norm.weight, 1e-5)
    # Of a sum of squares in any order, the square root has half the relative error.
    assert is_near(found, norm(rows), width / 2 * EPS)
    assert torch.equal(operations.norm(rows[2:3], norm.weight, 1e-5), found[2:3])


@DTYPES
def test_a_sum_is_normalised_as_torch_rounds_it(dtype: torch.dtype) -> None:
    rows, added, weight = (random_rows(5, 83, dtype, seed) for seed in range(3))
    sums, normed = operations.norm_of_sum(rows, added, weight[0].contiguous(), 1e-5)
    assert torch.equal(sums, rows + added)
    assert torch.equal(normed, operations.norm(rows + added, weight[0], 1e-5))


@DTYPES
@pytest.mark.parametrize("dim", [8, 32, 72])
def test_rows_are_turned_like_transformers_own(dtype: torch.dtype, dim: int) -> None:
    rows = random_rows(5, 4 * dim, dtype)
    angles = torch.linspace(0, 3, 5 * dim // 2).view(5, -1).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    heads = rows.view(1, 5, 4, dim).transpose(1, 2)
    query, key = apply_rotary_pos_emb(heads[:, :2], heads[:, 2:3], cos[None], sin[None])
    expected = torch.cat([query, key, heads[:, 3:]], dim=1).transpose(1, 2).reshape(5, -1)
    operations.rotate(rows, cos, sin, 3, dim)
    assert torch.allclose(rows, expected, 0, 20 * torch.finfo(dtype).eps)


@DTYPES
@WIDTHS
def test_values_are_gated_like_torch_s_own(dtype: torch.dtype, width: int) -> None:
    rows = random_rows(5, 2 * width, dtype)
    rows[0, :2] = torch.tensor([90.0, -90.0])
    gates, values = rows.chunk(2, dim=1)
    found = operations.gate(rows)
    assert is_near(found, functional.silu(gates) * values)
    assert torch.equal(operations.gate(rows[2:3]), found[2:3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_number_of_16_bits_is_read_and_rounded_like_by_torch(dtype: torch.dtype) -> None:
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    zeros = torch.zeros_like(numbers)
    weight = torch.ones(len(numbers), dtype=dtype)
    sums, _ = operations.norm_of_sum(numbers, zeros, weight, 1e-5)
    assert torch.equal(sums, numbers + zeros)
    others = numbers.roll(12345)
    sums, _ = operations.norm_of_sum(numbers, others, weight, 1e-5)
    assert torch.equal(sums, numbers + others)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        _cpu.gate(0, 0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        _cpu.gate(0, "address", 0, 1, 1)  # type: ignore[arg-type]


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
