"""Products of quantised weights: with rows as they are, in bfloat16, and in 8 bits."""

from __future__ import annotations

import pytest
import torch

from diffuspec.core.devices import CPU_LEVELS
from diffuspec.models.kernels import levels, operations
from diffuspec.models.kernels.products import MatrixProduct, has_bfloat16_vectors
from diffuspec.models.kernels.quantized import Groups, Layout, QuantizedMatrix, QuantizedProduct

NUM_INPUTS = 192
HERE = CPU_LEVELS[: CPU_LEVELS.index(levels.own_level()) + 1]
FUSED = [level for level in HERE if level != "x86-64"]  # with multiply-adds that round once

pytestmark = pytest.mark.skipif(not operations.is_available, reason="needs compiled kernels")


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


def with_a_zero(num_outputs: int) -> QuantizedMatrix:
    """Return a matrix of 8 bits with a zero."""
    numbers = torch.randint(-128, 128, (num_outputs, NUM_INPUTS), dtype=torch.int8)
    scales = torch.randn(num_outputs, NUM_INPUTS // 48).half()
    layout = Layout(8, 48, zero=-100)
    return QuantizedMatrix(layout, tuple(numbers.shape), [Groups(numbers, scales)])


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


def rounded(inputs: torch.Tensor, run: int) -> torch.Tensor:
    """Return rows of which each run of inputs is rounded to 127 steps of its largest number."""
    runs = inputs.double().unflatten(1, (-1, run))
    scales = runs.abs().amax(-1, keepdim=True) / 127
    return ((runs / scales).round() * scales).flatten(1)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 20, 100])
def test_activations_in_8_bits_give_the_same_bits_at_every_level(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    matrices, bias = [simple(200), nested(70), with_zeros(90), simple(193)], torch.randn(553)
    product = QuantizedProduct(matrices, bias, torch.float32, quantize_activations=True)
    inputs = torch.randn(num_rows, NUM_INPUTS)
    parts = [
        rounded(inputs, 32 if one.layout.group % 32 == 0 else one.layout.group)
        @ one.rows(torch.arange(one.num_outputs)).double().T
        for one in matrices
    ]
    expected = (torch.cat(parts, 1) + bias).float()
    found = []
    for level in FUSED:
        levels.use_level(level)
        found.append(product(inputs))
        assert (found[-1] - expected).abs().max() < 1e-5 * expected.abs().max()
    assert all(torch.equal(one, found[0]) for one in found)


def test_activations_that_are_not_finite_give_nothing_else() -> None:
    torch.manual_seed(0)
    product = QuantizedProduct([simple(64)], None, torch.float32, quantize_activations=True)
    inputs = torch.randn(4, NUM_INPUTS)
    inputs[0], inputs[1, 7], inputs[2, 40] = 0, float("nan"), float("-inf")
    outputs = product(inputs)
    assert not outputs[0].any()
    assert outputs[1:3].isnan().all()
    assert outputs[3].isfinite().all()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 12, 13, 40])
def test_products_in_bfloat16_round_only_their_sums(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    matrices = [simple(200), nested(70), with_zeros(90), simple(193), with_a_zero(64)]
    bias = torch.randn(617).bfloat16().float()
    product = QuantizedProduct(matrices, bias, torch.bfloat16)
    inputs = torch.randn(num_rows, NUM_INPUTS).bfloat16()
    weights = [one.rows(torch.arange(one.num_outputs)).double() for one in matrices]
    expected = inputs.double() @ torch.cat(weights).T + bias
    error = (product(inputs) - expected).abs()
    assert (error <= 2**-8 * expected.abs() + 1e-5 * expected.abs().max()).all()


@pytest.mark.skipif(not has_bfloat16_vectors(), reason="needs AVX-512 for bfloat16")
@pytest.mark.parametrize("num_rows", [1, NUM_INPUTS])
def test_every_number_is_exact_in_bfloat16(num_rows: int) -> None:
    numbers = torch.arange(-128, 128, dtype=torch.int8).repeat(NUM_INPUTS, 1).T.contiguous()
    scales = torch.ones(256, NUM_INPUTS // 32).half()
    matrix = QuantizedMatrix(Layout(8, 32), (256, NUM_INPUTS), [Groups(numbers, scales)])
    product = QuantizedProduct([matrix], None, torch.bfloat16)
    one_each = torch.eye(NUM_INPUTS, dtype=torch.bfloat16)[:num_rows]
    assert torch.equal(product(one_each), numbers.T[:num_rows].bfloat16())


@pytest.mark.parametrize("quantizes", [False, True])
@pytest.mark.parametrize("dtype", operations.TYPES, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype, quantizes: bool) -> None:
    torch.manual_seed(0)
    product = QuantizedProduct([nested(100), simple(200), with_zeros(64)], None, dtype, quantizes)
    inputs = torch.randn(27, NUM_INPUTS).to(dtype)
    outputs = product(inputs)
    assert outputs.dtype == dtype
    for size in (1, 2, 5, 9, 12, 13):
        parts = [product(part) for part in inputs.split(size)]
        assert torch.equal(torch.cat(parts), outputs)


def test_weights_of_some_outputs_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    matrix = nested(200)
    whole = QuantizedProduct([matrix], None, torch.float32).weight
    some = torch.tensor([199, 0, 64, 63])
    assert torch.equal(matrix.rows(some), whole[some])
