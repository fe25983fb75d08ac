"""Activations that treat a row in the same way wherever it stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffuspec.models.layers.activation import ChunkedActivation


@pytest.mark.parametrize("width", [64, 2011, 40_000])
def test_a_row_of_an_activation_does_not_depend_on_the_others(width: int) -> None:
    activation, before = ChunkedActivation(nn.SiLU()), torch.get_num_threads()
    rows = torch.randn(1, 37, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.set_num_threads(3)
    try:
        together = activation(rows)
        alone = torch.cat([activation(row) for row in rows.split(1, dim=1)], dim=1)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)
    assert (together - nn.functional.silu(rows)).abs().max() < 0.02
