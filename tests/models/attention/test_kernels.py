"""The attention kernels agree with each other."""

from __future__ import annotations

import pytest
import torch

from diffuspec.models.attention.kernels import attend, attend_fused
from diffuspec.models.attention.packed import View


@pytest.mark.parametrize("num_masked", [0, 5, 30])
def test_the_fused_kernel_equals_the_kernel_of_three_operations(num_masked: int) -> None:
    query, keys, values = torch.randn(6, 5, 8), torch.randn(2, 30, 8), torch.randn(2, 30, 8)
    mask = torch.randn(5, num_masked) if num_masked else None
    view = View(0, 30, mask)
    expected = attend(query, keys, values, mask, 0.3)
    found = attend_fused(query, keys, values, view.whole_mask(3), 0.3)
    assert torch.allclose(found, expected, atol=1e-6)
