"""The loss through a head whose logits are not kept."""

import pytest
import torch

from diffuspec.pairs.factory import head_loss
from diffuspec.pairs.factory.head_loss import weighted_cross_entropy


@pytest.mark.parametrize("has_bias", [False, True])
def test_loss_and_gradient_are_those_of_cross_entropy(monkeypatch, has_bias):
    monkeypatch.setattr(head_loss, "ROWS_ON_CPU", 4)
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 6, generator=random).requires_grad_()
    weight = torch.randn(9, 6, generator=random)
    bias = torch.randn(9, generator=random) if has_bias else None
    columns = torch.randint(-1, 9, (10, 3), generator=random)
    shares = torch.rand(10, 3, generator=random)

    logprobs = torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1)
    kept = torch.where(columns >= 0, logprobs.gather(1, columns.clamp(min=0)), 0.0)
    expected = -(kept * shares).sum()
    (gradient,) = torch.autograd.grad(expected, hidden)

    loss = weighted_cross_entropy(hidden, weight, bias, columns, shares)
    (2 * loss).backward()
    assert torch.allclose(loss, expected)
    assert hidden.grad is not None and torch.allclose(hidden.grad, 2 * gradient, atol=1e-5)
