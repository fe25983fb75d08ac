"""Numbers of rows at which products agree in every bit are found, and others not used."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from diffuspec.models.layers.invariant_sizes import (
    SIZES,
    Product,
    agreeing_sizes,
    gpu_size,
    multiply_in_sizes,
)


class Halved:
    """A product that sums the two halves of its inputs apart above a number of rows."""

    limit = 40

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, inputs: Tensor) -> Tensor:
        terms = (inputs.unsqueeze(1) * self._weight).unbind(-1)
        if len(inputs) <= self.limit:
            return _sum(terms)
        return _sum(terms[:20]) + _sum(terms[20:])


def _sum(terms: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total


class AlwaysDifferent(Halved):
    def __call__(self, inputs: Tensor) -> Tensor:
        return super().__call__(inputs) + len(inputs)


def test_sizes_that_sum_in_another_order_are_left_out() -> None:
    sizes = agreeing_sizes(Halved, 48, 24, torch.float32, torch.device("cpu"))
    assert sizes == tuple(size for size in SIZES if size > Halved.limit)


def test_a_product_whose_sizes_never_agree_has_the_largest_for_short_steps() -> None:
    found = agreeing_sizes(AlwaysDifferent, 48, 24, torch.float32, torch.device("cpu"))
    assert found == (256,)


@pytest.mark.parametrize("num_rows", [1, 3, 16, 17, 40, 100])
def test_rows_are_multiplied_in_pieces_of_the_sizes(num_rows: int) -> None:
    seen: set[int] = set()

    def product(rows: Tensor) -> Tensor:
        seen.add(rows.flatten(0, -2).shape[0])
        return 2 * rows

    inputs = torch.arange(num_rows * 3.0).view(1, num_rows, 3)
    made: Product = product
    assert torch.equal(multiply_in_sizes(made, inputs, (2, 16, 40)), 2 * inputs)
    assert seen <= {2, 16, 40}


def test_sizes_on_a_gpu_are_few_and_hardly_larger_for_long_prompts() -> None:
    assert {gpu_size(count) for count in range(1, 65)} == {16, 32, 64}
    assert [gpu_size(count) for count in (65, 128, 1100)] == [128, 128, 1152]


def test_rows_are_cut_where_much_padding_would_be_added() -> None:
    seen = list[int]()

    def product(inputs: Tensor) -> Tensor:
        seen.append(len(inputs))
        return inputs

    rows = torch.randn(1100, 2)
    assert torch.equal(multiply_in_sizes(product, rows, (16, 64, 256, 1024)), rows)
    assert seen == [1024, 64, 16]
    seen.clear()
    multiply_in_sizes(product, rows[:3], (256, 1024))
    assert seen == [256]
