"""Products of quantised weights have the bits of products with the same weights in float32."""

from __future__ import annotations

import pytest
import torch

from diffuspec.core.devices import CPU_LEVELS
from diffuspec.models.kernels import levels, operations
from diffuspec.models.kernels.products import MatrixProduct
from diffuspec.models.kernels.quantized import Groups, Layout, QuantizedMatrix, QuantizedProduct

NUM_INPUTS = 192
HERE = CPU_LEVELS[1 : CPU_LEVELS.index(levels.own_level()) + 1]

pytestmark = pytest.mark.skipif(not HERE, reason="needs compiled kernels on x86-64-v3")


def simple(num_outputs: int) -> QuantizedMatrix:
    """Return a matrix of 4 bits with a zero."""
    numbers = torch.randint(0, 16, (num_outputs, NUM_INPUTS), dtype=torch.uint8)
    scales = torch.randn(num_outputs, NUM_INPUTS // 32).half()
    slices = [Groups(numbers[a:b], scales[a:b]) for a, b in CUTS]
    return QuantizedMatrix(Layout(4, 32, zero=8), tuple(numbers.shape), slices)


def nested(num_outputs: int) -> QuantizedMatrix:
    """Return a matrix of 8 bits whose scales and offsets have codes."""
    numbers = torch.randint(-32, 32, (num_outputs, NUM_INPUTS), dtype=torch.int8)
    supers = torch.randn(num_outputs, NUM_INPUTS // 64).half()
    codes = torch.randint(-64, 64, (num_outputs, NUM_INPUTS // 16), dtype=torch.int8)
    groups = Groups(numbers, supers, codes, supers.flip(0), codes.flip(0))
    return QuantizedMatrix(Layout(8, 16, ratio=4), tuple(numbers.shape), [groups])


def with_zeros(num_outputs: int) -> QuantizedMatrix:
    """Return a matrix of 4 bits with a zero for each group, and scales that groups share."""
    numbers = torch.randint(0, 16, (num_outputs, NUM_INPUTS), dtype=torch.uint8)
    scales = torch.randn(num_outputs, NUM_INPUTS // 96).bfloat16()
    zeros = torch.randint(0, 17, (num_outputs, NUM_INPUTS // 24), dtype=torch.int8)
    layout = Layout(4, 24, ratio=4, scale_type=torch.bfloat16)
    return QuantizedMatrix(layout, tuple(numbers.shape), [Groups(numbers, scales, zeros=zeros)])


CUTS = ((0, 64), (64, 192), (192, None))


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 20])
def test_products_have_the_bits_of_those_in_float32(level: str, num_rows: int) -> None:
    torch.manual_seed(num_rows)
    levels.use_level(level)
    matrices = [simple(200), nested(70), with_zeros(90), simple(193)]
    bias = torch.randn(553)
    product = QuantizedProduct(matrices, bias, torch.float32)
    inputs = torch.randn(num_rows, NUM_INPUTS)
    assert torch.equal(product(inputs), MatrixProduct(product.weight, bias)(inputs))


@pytest.mark.parametrize("dtype", operations.TYPES, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    product = QuantizedProduct([nested(100), simple(200), with_zeros(64)], None, dtype)
    inputs = torch.randn(9, NUM_INPUTS).to(dtype)
    outputs = product(inputs)
    assert outputs.dtype == dtype
    for size in (1, 2, 5):
        parts = [product(part) for part in inputs.split(size)]
        assert torch.equal(torch.cat(parts), outputs)


def test_weights_of_some_outputs_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    matrix = nested(200)
    whole = QuantizedProduct([matrix], None, torch.float32).weight
    some = torch.tensor([199, 0, 64, 63])
    assert torch.equal(matrix.rows(some), whole[some])
