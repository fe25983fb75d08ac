"""Products of our own are those of torch, for each row alone."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch

from diffuspec.core.devices import CPU_LEVELS
from diffuspec.models.kernels import levels, operations
from diffuspec.models.kernels.products import Int8Matrix, MatrixProduct

HERE = CPU_LEVELS[: CPU_LEVELS.index(levels.own_level()) + 1]
SHAPES = pytest.mark.parametrize("shape", [(64, 128), (31, 70), (130, 65), (100, 1)], ids=str)


class Kind(NamedTuple):
    """A type of rows, whether they are rounded to 8 bits, and the level of the processor."""

    dtype: torch.dtype
    allow_int8: bool
    level: str

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{' in int8' * self.allow_int8} on {self.level}"

    def product(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> MatrixProduct:
        bias = None if bias is None else bias.to(self.dtype)
        return MatrixProduct(weight.to(self.dtype), bias, self.allow_int8)


@pytest.fixture(
    params=itertools.starmap(Kind, itertools.product(operations.TYPES, (False, True), HERE)),
    ids=str,
)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    levels.use_level(found.level)
    return found


def random_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return numbers that bfloat16 has, too."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.bfloat16().float()


pytestmark = pytest.mark.skipif(not operations.is_available, reason="needs compiled kernels")


@SHAPES
def test_a_product_is_torch_s_own_up_to_rounding(kind: Kind, shape: tuple[int, int]) -> None:
    weight, bias = random_numbers(*shape), random_numbers(shape[0], seed=1)
    inputs = random_numbers(2, 20, shape[1], seed=2)
    expected = inputs.double() @ weight.double().T + bias.double()
    outputs = kind.product(weight, bias)(inputs.to(kind.dtype))
    assert outputs.dtype == kind.dtype
    most = 0.02 if kind.allow_int8 else torch.finfo(kind.dtype).eps
    assert (outputs - expected).norm() / expected.norm() < most


@SHAPES
def test_a_row_does_not_depend_on_the_others(kind: Kind, shape: tuple[int, int]) -> None:
    multiply = kind.product(random_numbers(*shape))
    inputs = random_numbers(70, shape[1], seed=2).to(kind.dtype)
    outputs = multiply(inputs)
    for size in (1, 2, 3, 4, 5, 6, 7, 15, 16, 17, 32, 33):
        assert torch.equal(multiply(inputs[3 : 3 + size]), outputs[3 : 3 + size]), size


@pytest.mark.parametrize("num_rows", [3, 256, 700])
def test_threads_change_no_bit(kind: Kind, num_rows: int) -> None:
    multiply = kind.product(random_numbers(1030, 520))
    inputs = random_numbers(num_rows, 520).to(kind.dtype)
    num_threads, outputs = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            outputs.append(multiply(inputs))
    finally:
        torch.set_num_threads(num_threads)
    assert all(torch.equal(one, outputs[0]) for one in outputs)


@SHAPES
def test_packed_weights_can_be_read_again(kind: Kind, shape: tuple[int, int]) -> None:
    weight = random_numbers(*shape)
    found = kind.product(weight).weight
    assert found.dtype == kind.dtype
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    most = 0.6 * step + 0.01 * weight.abs() if kind.allow_int8 else torch.zeros(1)
    assert ((found - weight).abs() <= most).all()


def test_rows_and_weights_of_zeros_give_the_bias(kind: Kind) -> None:
    bias = random_numbers(5)
    outputs = kind.product(torch.zeros(5, 7), bias)(torch.zeros(2, 7).to(kind.dtype))
    assert torch.equal(outputs, bias.expand(2, 5).to(kind.dtype))


def test_numbers_that_are_not_finite_show(kind: Kind) -> None:
    inputs = random_numbers(3, 40).to(kind.dtype)
    inputs[1, 2] = torch.nan
    outputs = kind.product(random_numbers(4, 40))(inputs)
    assert outputs[1].isnan().all() and outputs[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(2**-100, torch.bfloat16), (1 + 2**-10, torch.float16), (1 / 3, torch.float32)],
    ids=str,
)
def test_float32_weights_are_kept_in_16_bits_where_that_changes_none(
    number: float, dtype: torch.dtype
) -> None:
    weight = random_numbers(100, 70).bfloat16().half().float()
    weight[7, 5] = number
    wide = torch.cat([weight, torch.full((1, 70), 1 / 3)])  # needs 32 bits
    inputs = random_numbers(9, 70, seed=2)
    product, same = MatrixProduct(weight, None), MatrixProduct(wide, None)
    kept = [operations.TYPES[dtype], operations.TYPES[torch.float32]]
    assert [product.matrix.weight_type, same.matrix.weight_type] == kept
    assert torch.equal(product.weight, weight)
    assert torch.equal(product(inputs), same(inputs)[:, :100])


def test_no_rows_have_no_outputs(kind: Kind) -> None:
    outputs = kind.product(random_numbers(70, 30))(random_numbers(0, 30).to(kind.dtype))
    assert outputs.shape == (0, 70)


def test_a_weight_in_16_bits_is_multiplied_in_float32() -> None:
    weight, inputs = random_numbers(130, 70), random_numbers(5, 70, seed=1)
    product = MatrixProduct(weight.bfloat16(), None, dtype=torch.float32)
    assert torch.equal(product(inputs), MatrixProduct(weight, None)(inputs))
    some = torch.tensor([129, 0, 64])
    assert torch.equal(product.rows(some), weight[some].bfloat16())


@pytest.mark.parametrize("dtype", operations.TYPES, ids=str)
def test_an_int8_matrix_is_multiplied_with_rows_rounded_to_8_bits(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    numbers = torch.randint(-128, 128, (130, 70), generator=random, dtype=torch.int8)
    scales, inputs = torch.rand(130, generator=random), random_numbers(5, 70).to(dtype)
    bias = random_numbers(130, seed=1)
    product = MatrixProduct(Int8Matrix(numbers, scales), bias, dtype=dtype)
    steps = inputs.float().abs().amax(1, keepdim=True) / 127
    rounded = (inputs / steps).round()
    expected = rounded.double() @ numbers.double().T * (steps * scales) + bias
    assert product(inputs).dtype == dtype
    torch.testing.assert_close(product(inputs), expected.to(dtype))
    assert torch.equal(product.rows(torch.arange(130)), numbers * scales[:, None])
