"""The hidden states that draft heads are fed are those that transformers names."""

from __future__ import annotations

import torch

from diffuspec.core.interfaces import LAST_LAYER
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.models.runner import ModelRunner
from tests.support.models import make_model, random_tokens, segment


def test_each_layer_and_the_head_show_their_rows(runner: ModelRunner, family: str) -> None:
    token_ids, states = random_tokens(9), HiddenStates([1, LAST_LAYER])
    runner.forward([segment(0, 0, token_ids)], states)
    with torch.inference_mode():
        model = make_model(family)
        expected = model(torch.tensor(token_ids)[None], output_hidden_states=True).hidden_states
    assert (states.rows(1) - expected[2][0]).abs().max() < 1e-4
    assert (states.rows(LAST_LAYER) - expected[-1][0]).abs().max() < 1e-4
