"""The attention kernels agree with each other."""

from __future__ import annotations

import pytest
import torch

from diffuspec.models.attention.interface import Scoring
from diffuspec.models.attention.torch import attend, attend_in_blocks
from tests.support.rounding import EPS, product_error


@pytest.mark.parametrize(
    "scoring",
    [
        Scoring(0.3),
        Scoring(0.3, softcap=0.8),
        Scoring(0.3, sinks=torch.linspace(-1, 2, 6)),
        Scoring(0.3, softcap=0.8, sinks=torch.linspace(-1, 2, 6)),
    ],
    ids=["plain", "soft-capped", "with sinks", "both"],
)
def test_the_kernel_in_blocks_equals_the_kernel_of_three_operations(scoring: Scoring) -> None:
    random = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(shape, generator=random) for shape in ((6, 5, 8), (2, 32, 8), (2, 32, 8))
    )
    mask = torch.zeros(5, 32)
    mask[:, 20:] = -torch.inf
    expected = attend(query, keys, values, mask, scoring)
    found = attend_in_blocks(query, keys, values, mask, scoring, 8)
    # An error d of the scores is one of 2d in the weights, which then are summed over the columns.
    largest = scoring.scaling * product_error(query.flatten(0, 1), keys.flatten(0, 1)).max()
    error = (2 * largest + 32 * EPS) * values.abs().max()
    assert (found - expected).abs().max() <= 2 * error  # each kernel may be off by `error`
