"""Rotary positions by a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from diffuspec.models.layers.activation import ChunkedActivation, use_chunked_activations
from diffuspec.models.layers.rotary import RotaryTable, RoundedAngles, use_rotary_tables
from tests.support.models import make_dynamic_model, make_longrope_model, make_model


@torch.inference_mode()
def test_tables_hold_what_a_rotary_embedding_computes() -> None:
    rotary = make_model("llama").model.rotary_emb
    positions = torch.tensor([[3, 0, 250, 17]])
    table = RotaryTable(rotary, 100, 256, torch.float32)
    hidden = torch.zeros(1, 4, 48)
    for mine, expected in zip(table(hidden, positions), rotary(hidden, positions), strict=True):
        assert torch.allclose(mine, expected, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("make", [make_longrope_model, make_dynamic_model])
def test_tables_hold_the_angles_of_the_longest_sequence(make: Callable[[], Any]) -> None:
    """Its scratch rows lie where these families have other angles."""
    rotary, max_len = make().model.rotary_emb, 128
    positions, hidden = torch.arange(max_len)[None], torch.zeros(1, 4, 48)
    expected = [angles.clone() for angles in rotary(hidden, positions)]
    table = RotaryTable(rotary, max_len, 512, torch.float32)
    for mine, angles in zip(table(hidden, positions), expected, strict=True):
        assert torch.allclose(mine, angles, atol=1e-6)


@torch.inference_mode()
def test_frequencies_and_angles_are_rounded_from_float64() -> None:
    """Those that torch computes in float32 depend on the processor's functions."""
    with RoundedAngles():
        rotary = make_model("llama").model.rotary_emb
    dim, base = 12, rotary.config.rope_parameters["rope_theta"]
    exponents = (torch.arange(0, dim, 2) / dim).double()
    frequencies = 1 / torch.pow(base, exponents).float()
    assert torch.equal(rotary.inv_freq, frequencies)
    angles = (torch.arange(256.0)[:, None] * frequencies).repeat(1, 2).double()
    table = RotaryTable(rotary, 256, 256, torch.float32)
    found = table(torch.zeros(1, 256, 48), torch.arange(256)[None])
    for mine, expected in zip(found, (angles.cos(), angles.sin()), strict=True):
        assert torch.equal(mine[0], expected.float())


def test_rotary_embeddings_of_another_kind_are_told() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inv_freq = torch.ones(4)

        def forward(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> None:
            raise NotImplementedError

    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
    assert use_chunked_activations(model)
    assert isinstance(model[1], ChunkedActivation)
    model = nn.Sequential(nn.Linear(4, 4), Other())
    use_rotary_tables(model, 8, 8)
    assert not use_chunked_activations(model)


def test_rotary_embeddings_become_tables() -> None:
    model = make_model("llama")
    use_rotary_tables(model, 64, 64)
    assert isinstance(model.model.rotary_emb, RotaryTable)
    assert use_chunked_activations(model)
