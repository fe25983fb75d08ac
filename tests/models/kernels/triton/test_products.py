"""Products of quantised weights on a GPU: those of the weights in float32, whatever rows there are.

Without a GPU they run in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffuspec.models.kernels.products import Int8Matrix
from diffuspec.models.kernels.quantized import Groups, Layout

pytest.importorskip("triton")
IS_INTERPRETED = not torch.cuda.is_available()

from diffuspec.models.kernels.triton import operations  # noqa: E402
from diffuspec.models.kernels.triton.matrix import GpuMatrix, packing_for  # noqa: E402
from diffuspec.models.kernels.triton.products import GroupsProduct, Int8Product  # noqa: E402

DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
NUM_INPUTS, NUM_OUTPUTS = 768, 136
# The interpreter does not compute in bfloat16.
TYPES = [torch.float16] if IS_INTERPRETED else [torch.bfloat16, torch.float16, torch.float32]
COUNTS = (1, 5) if IS_INTERPRETED else (1, 2, 4, 16, 33, 64, 150, 600)


def matrix(layout: Layout, groups: Groups) -> GpuMatrix:
    slices = [
        Groups(*(None if one is None else one[a:b] for one in groups))  # type: ignore[arg-type]
        for a, b in CUTS
    ]
    return GpuMatrix(layout, tuple(groups.numbers.shape), slices, DEVICE)


CUTS = ((0, 128), (128, None))


def four_bits(group: int, ratio: int = 1, **more: Tensor) -> GpuMatrix:
    numbers = torch.randint(0, 16, (NUM_OUTPUTS, NUM_INPUTS), dtype=torch.uint8)
    scales = torch.randn(NUM_OUTPUTS, NUM_INPUTS // group // ratio).half()
    layout = Layout(4, group, ratio, zero=0 if more else 8)
    return matrix(layout, Groups(numbers, scales, **more))


def eight_bits(group: int, ratio: int = 1, **more: Tensor) -> GpuMatrix:
    numbers = torch.randint(-128, 128, (NUM_OUTPUTS, NUM_INPUTS), dtype=torch.int8)
    scales = torch.randn(NUM_OUTPUTS, NUM_INPUTS // group // ratio).bfloat16()
    layout = Layout(8, group, ratio, scale_type=torch.bfloat16)
    return matrix(layout, Groups(numbers, scales, **more))


def codes(group: int) -> Tensor:
    return torch.randint(-64, 64, (NUM_OUTPUTS, NUM_INPUTS // group), dtype=torch.int8)


MATRICES = {
    "4 bits": lambda: four_bits(32),
    "4 bits, offsets": lambda: four_bits(
        32, offsets=torch.randn(NUM_OUTPUTS, NUM_INPUTS // 32).half()
    ),
    "4 bits, zeros": lambda: four_bits(128, zeros=codes(128) % 17),
    "4 bits, codes": lambda: four_bits(
        32, 8, codes=codes(32), offsets=torch.randn(NUM_OUTPUTS, 3).half(), offset_codes=codes(32)
    ),
    "4 bits, one group": lambda: four_bits(256, 3),
    "8 bits": lambda: eight_bits(32),
    "8 bits, codes": lambda: eight_bits(16, 16, codes=codes(16)),
    "8 bits, zeros": lambda: eight_bits(96, zeros=codes(96)),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_are_those_of_the_weights_in_float32(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    bias = torch.randn(2 * NUM_OUTPUTS).to(DEVICE, dtype)
    product = GroupsProduct([MATRICES[name](), MATRICES[name]()], bias, dtype)
    rows = torch.randn(3, NUM_INPUTS).mul(0.01).to(DEVICE, dtype)
    weight = GroupsProduct(product._matrices, None, torch.float32).weight.double()
    expected = rows.double() @ weight.T + bias.double()
    found = product(rows)
    assert found.dtype == dtype
    size = rows.double().norm(dim=1, keepdim=True) * weight.norm(dim=1) + bias.abs()
    assert ((found.double() - expected).abs() / size).max() < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["4 bits, codes", "8 bits"] if IS_INTERPRETED else MATRICES)
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(name: str) -> None:
    torch.manual_seed(0)
    product = GroupsProduct([MATRICES[name]()], None, TYPES[0])
    rows = torch.randn(COUNTS[-1], NUM_INPUTS).mul(0.01).to(DEVICE, TYPES[0])
    whole = product(rows)
    for count in COUNTS:
        assert torch.equal(product(rows[:count]), whole[:count])


@pytest.mark.parametrize("name", ["4 bits, codes", "8 bits"])
def test_sums_and_gates_have_the_bits_of_those_after_the_product(name: str) -> None:
    torch.manual_seed(0)
    product = GroupsProduct([MATRICES[name]()], None, TYPES[0])
    rows = torch.randn(2, NUM_INPUTS).mul(1e-4).to(DEVICE, TYPES[0])
    outputs, added = product(rows), torch.randn(2, NUM_OUTPUTS).to(DEVICE, TYPES[0])
    assert torch.equal(product(rows, added), outputs + added)
    assert torch.equal(product.gated(rows), operations.gate(outputs))


def test_numbers_in_8_bits_are_summed_without_rounding() -> None:
    torch.manual_seed(0)
    numbers = torch.randint(-127, 128, (NUM_OUTPUTS, NUM_INPUTS), dtype=torch.int8)
    stored = Int8Matrix(numbers.to(DEVICE), torch.rand(NUM_OUTPUTS).to(DEVICE))
    bias = torch.randn(NUM_OUTPUTS).to(DEVICE)
    product = Int8Product(stored, bias, torch.float32)
    rows = torch.randn(20, NUM_INPUTS).to(DEVICE)
    most = rows.abs().amax(1, keepdim=True)
    sums = (rows * (127 / most)).round().double() @ numbers.to(DEVICE).double().T
    expected = sums.float() * ((most / 127) * stored.scales) + bias
    torch.testing.assert_close(product(rows), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(product(rows[:1]), product(rows)[:1])
    rows[3, 5] = torch.inf
    assert product(rows)[3].isnan().all()
    assert product(torch.zeros_like(rows)).equal(bias.expand(20, -1))


def test_weights_of_some_outputs_are_those_of_the_format() -> None:
    torch.manual_seed(0)
    numbers = torch.randint(0, 16, (130, 96), dtype=torch.uint8)
    scales = torch.randn(130, 3).half()
    slices = [Groups(numbers, scales)]
    stored = GpuMatrix(Layout(4, 32, zero=8), (130, 96), slices, DEVICE)
    picked = torch.tensor([129, 0, 64])
    expected = (numbers.float() - 8) * scales.float().repeat_interleave(32, 1)
    found = stored.rows(picked.to(DEVICE))
    assert found.is_contiguous()  # kernels take rows of an embedding like this
    assert torch.equal(found.cpu(), expected[picked])


def test_groups_that_are_too_small_are_not_packed() -> None:
    assert packing_for(Layout(4, 24), 192, has_groups=True) is None
    packing = packing_for(Layout(4, 128), 5120, has_groups=True)
    assert packing is not None and (packing.unit, packing.span) == (64, 128)
