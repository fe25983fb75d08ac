"""Products on a GPU: inputs are summed in ascending order, whatever rows are beside a row.

Without a GPU they run in Triton's interpreter where Triton is installed. It sums a unit of inputs
in an order of its own, so what shows the order there are units with one input that is not 0.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton.tools.tensor_descriptor import TensorDescriptor

from diffuspec.models.kernels.triton import linear, linear_kernels, operations
from diffuspec.models.kernels.triton.linear import LinearProduct, _Tile, _Ways

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TYPES = [torch.bfloat16, torch.float32] if torch.cuda.is_available() else [torch.float32]
SMALL = _Tile(16, 64, 32, 4)


def product_of(rows: Tensor, weight: Tensor, tile: _Tile = SMALL) -> Tensor:
    outputs = torch.empty(len(rows), len(weight), dtype=rows.dtype, device=rows.device)
    linear.multiply(rows, weight, outputs, tile)
    return outputs


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 128), (100, 48), (7, 200)])
def test_products_are_those_of_the_weight(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(shape).to(DEVICE, dtype), torch.randn(shape[0]).to(DEVICE, dtype)
    product = LinearProduct(weight, bias, dtype)
    rows = torch.randn(2, 3, shape[1]).to(DEVICE, dtype)
    expected = rows.double() @ weight.double().T + bias.double()
    found = product(rows)
    assert found.dtype == dtype and found.shape == (2, 3, shape[0])
    error = (found.double() - expected).abs() / expected.norm(dim=-1, keepdim=True)
    assert error.max() < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("rows_of_tile", [16, 32, 64, 128])
def test_inputs_are_summed_in_ascending_order(rows_of_tile: int) -> None:
    large, rows = 2.0**30, torch.zeros(130, 96, device=DEVICE)
    rows[:, 5], rows[:, 40], rows[:, 95] = large, 1.0, -large  # one in each unit of 32
    rows[77, 40], rows[78, 5], rows[78, 95] = 0.0, 1.0, -large
    weight = torch.ones(64, 96, device=DEVICE)
    found = product_of(rows, weight, _Tile(rows_of_tile, 64, 32, 4))
    assert (found[:77] == 0).all()  # 1 is lost beside 2 ** 30
    assert (found[78] == 2 - large).all()
    backwards = product_of(rows.flip(1), weight, _Tile(rows_of_tile, 64, 32, 4))
    assert torch.equal(backwards[:77], found[:77])
    rows[:, 40], rows[:, 95] = -large, 1.0
    assert (product_of(rows, weight, _Tile(rows_of_tile, 64, 32, 4))[:77] == 1).all()


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it() -> None:
    torch.manual_seed(0)
    dtype = TYPES[0]
    numbers = torch.randn(1, 256).ldexp(torch.randint(-4, 5, (1, 256)))
    rows = numbers.repeat(300, 1).to(DEVICE, dtype)
    product = LinearProduct(torch.randn(72, 256).to(DEVICE, dtype), None, dtype)
    whole = product(rows)
    if dtype == torch.bfloat16:  # the interpreter's sums depend on a tile's shape
        for count in (1, 2, 16, 17, 33, 64, 65, 129):
            assert torch.equal(product(rows[:count]), whole[:count])
    assert (whole == whole[0]).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU copies tiles by itself, or cannot")
def test_weights_may_be_read_through_a_descriptor() -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(3, 96), torch.randn(80, 96)
    outputs = torch.empty(3, 80)
    linear_kernels.multiply[(2,)](
        rows,
        TensorDescriptor.from_tensor(weight, [64, 32]),
        weight,
        outputs,
        outputs,
        3,
        96,
        80,
        ROWS=16,
        OUTPUTS=64,
        UNIT=32,
        HAS_DESCRIPTOR=True,
        IS_WHOLE=True,
        HAS_BIAS=False,
        ADDS=False,
        GATES=False,
        PRECISION="ieee",
    )
    assert torch.equal(outputs, product_of(rows, weight))


def test_sums_of_a_ranks_share_are_not_rounded() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 64).to(DEVICE, torch.float16)
    rows = torch.randn(2, 64).to(DEVICE, torch.float16)
    found = LinearProduct(weight, None, torch.float32)(rows)
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.half().float())


@pytest.mark.parametrize("num_rows", [1, 17, 70])
def test_a_sum_with_other_rows_has_the_bits_of_one_after_the_product(num_rows: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(72, 96).to(DEVICE, TYPES[0]), torch.randn(72).to(DEVICE, TYPES[0])
    rows = torch.randn(num_rows, 96).to(DEVICE, TYPES[0])
    added = torch.randn(num_rows, 72).to(DEVICE, TYPES[0])
    product = LinearProduct(weight, bias, TYPES[0])
    assert torch.equal(product(rows, added), product(rows) + added)


@pytest.mark.parametrize("num_rows", [1, 17, 70])
def test_gated_values_have_the_bits_of_a_gate_after_the_product(num_rows: int) -> None:
    torch.manual_seed(0)
    product = LinearProduct(torch.randn(2 * 72, 96).to(DEVICE, TYPES[0]), None, TYPES[0])
    rows = torch.randn(num_rows, 96).to(DEVICE, TYPES[0])
    assert product._ways.has_gates
    assert torch.equal(product.gated(rows), operations.gate(product(rows)))


def test_prompts_are_cut_where_cublas_agrees() -> None:
    pieces = _Ways(True, True, (2048, 512)).pieces
    assert [*pieces(300)] == [(300, False)]
    assert [*pieces(3400)] == [(2048, True), (512, True), (512, True), (328, False)]
    assert [*_Ways(False, False, ()).pieces(3000)] == [(3000, False)]
