"""The attention kernels agree with each other."""

from __future__ import annotations

import pytest
import torch

from diffuspec.models.attention.kernels import attend, attend_in_blocks
from diffuspec.models.attention.scoring import Scoring


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
    query, keys, values = torch.randn(6, 5, 8), torch.randn(2, 32, 8), torch.randn(2, 32, 8)
    mask = torch.zeros(5, 32)
    mask[:, 20:] = -torch.inf
    expected = attend(query, keys, values, mask, scoring)
    found = attend_in_blocks(query, keys, values, mask, scoring, 8)
    assert torch.allclose(found, expected, atol=1e-6)
