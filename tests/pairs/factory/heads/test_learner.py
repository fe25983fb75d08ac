"""Which rows heads learn from, and how their losses are computed."""

import pytest
import torch
from torch.nn import functional

from diffuspec.pairs.factory import loss
from diffuspec.pairs.factory.examples import Batch
from diffuspec.pairs.factory.heads.learner import Rows, ahead
from diffuspec.pairs.factory.loss import in_slices


def test_rows_are_wanted_as_far_as_their_tokens_are_in_one_answer() -> None:
    token_ids = torch.tensor([[5, 6, 7, 8, 9]])
    is_answer = torch.tensor([[False, False, True, True, False]])
    rows = Rows(Batch(token_ids, is_answer, torch.ones_like(is_answer)), torch.zeros(1, 5, 2))
    assert ahead(token_ids, 2).tolist() == [[7, 8, 9, 0, 0]]
    assert rows.wanted(1).tolist() == [[False, True, True, False, False]]
    assert rows.wanted(2).tolist() == [[False, True, False, False, False]]


def test_losses_in_slices_have_the_gradient_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))

    def summed(states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(states, labels, reduction="sum")

    def gradient() -> torch.Tensor:
        states = rows.clone().requires_grad_()
        in_slices(summed, states, torch.arange(7) % 3).backward()
        assert states.grad is not None
        return states.grad

    whole = gradient()
    monkeypatch.setattr(loss, "SLICE_ROWS", 3)
    assert torch.allclose(gradient(), whole)
