"""Products by tiles are those of torch, for each row alone."""

from __future__ import annotations

import pytest
import torch

from diffuspec.models.rows import products
from diffuspec.models.rows.products import RowsProduct

pytestmark = pytest.mark.skipif(
    not products.is_available(), reason="this processor does not multiply tiles"
)

SHAPES = pytest.mark.parametrize("shape", [(64, 128), (31, 70), (100, 1)], ids=str)
IN_INT8 = pytest.mark.parametrize("is_int8", [False, True], ids=["bfloat16", "int8"])


def random_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@IN_INT8
@SHAPES
def test_a_product_is_torch_s_own_up_to_rounding(shape: tuple[int, int], is_int8: bool) -> None:
    weight, bias = random_numbers(*shape), random_numbers(shape[0], seed=1)
    inputs = random_numbers(2, 20, shape[1], seed=2)
    expected = inputs.double() @ weight.double().T + bias.double()
    error = (RowsProduct(weight, bias, is_int8)(inputs) - expected).norm() / expected.norm()
    assert error < (0.02 if is_int8 else 0.003)


@IN_INT8
@SHAPES
def test_a_row_does_not_depend_on_the_others(shape: tuple[int, int], is_int8: bool) -> None:
    multiply = RowsProduct(random_numbers(*shape), None, is_int8)
    inputs = random_numbers(70, shape[1], seed=2)
    outputs = multiply(inputs)
    for size in (1, 2, 15, 16, 17, 32, 33):
        assert torch.equal(multiply(inputs[3 : 3 + size]), outputs[3 : 3 + size]), size


@IN_INT8
def test_threads_divide_the_outputs_only(is_int8: bool) -> None:
    multiply, inputs = RowsProduct(random_numbers(1030, 520), None, is_int8), random_numbers(3, 520)
    num_threads, outputs = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            outputs.append(multiply(inputs))
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(*outputs)


@SHAPES
def test_packed_weights_can_be_read_again(shape: tuple[int, int]) -> None:
    weight = random_numbers(*shape)
    assert torch.equal(RowsProduct(weight, None).weight, weight)
    rounded = RowsProduct(weight, None, is_int8=True).weight
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((rounded - weight).abs() <= 0.6 * step + 0.01 * weight.abs()).all()


def test_rows_and_weights_of_zeros_give_the_bias() -> None:
    bias = random_numbers(5)
    multiply = RowsProduct(torch.zeros(5, 7).bfloat16(), bias, is_int8=True)
    assert torch.equal(multiply(torch.zeros(2, 7).bfloat16()), bias.expand(2, 5))


def test_numbers_that_are_not_finite_show() -> None:
    inputs = random_numbers(3, 40)
    inputs[1, 2] = torch.nan
    outputs = RowsProduct(random_numbers(4, 40), None)(inputs)
    assert outputs[1].isnan().all() and outputs[[0, 2]].isfinite().all()
