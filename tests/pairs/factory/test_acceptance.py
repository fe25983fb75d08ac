"""What of a draft counts as right."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from diffuspec.pairs.factory.acceptance import measure_acceptance
from diffuspec.pairs.factory.examples import Batch

NUM_IDS = 32


class Counter:
    """A causal LM that says the token after its own, and never the one that it does not know."""

    def __init__(self, unknown: int) -> None:
        self._unknown = unknown

    def get_decoder(self) -> Any:
        def decode(input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
            said = torch.where(input_ids + 1 == self._unknown, 0, input_ids + 1)
            return SimpleNamespace(last_hidden_state=one_hot(said, NUM_IDS).float())

        return decode

    def get_output_embeddings(self) -> Any:
        return lambda hidden: hidden


@pytest.mark.parametrize(
    ("unknown", "expected"),
    [
        (31, (1.0, 0.5, 0.5)),  # the second draft begins at the answer's last token
        (15, (1.0, 0.5, 0.0)),
        (13, (0.5, 0.0, 0.0)),
    ],
)
def test_tokens_drafted_one_by_one_are_right_until_the_first_wrong_one(unknown, expected):
    token_ids = torch.arange(10, 18)[None]
    is_answer = torch.tensor([[False] * 3 + [True] * 4 + [False]])
    batch = Batch(token_ids, is_answer, torch.ones_like(is_answer))
    found = measure_acceptance(Counter(unknown), [batch], None, length=3, probes=2)
    assert found.num_drafts == 2
    assert found.right_by_position == expected
