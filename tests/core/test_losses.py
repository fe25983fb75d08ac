"""Losses: a suspect after two, fatal at the third, unless there was much progress between."""

from __future__ import annotations

import pytest

from diffuspec.core.errors import FatalRequestError
from diffuspec.core.losses import Losses


def test_the_second_loss_makes_a_suspect_and_the_third_is_fatal():
    losses = Losses()
    losses.add("first", 10)
    assert not losses.is_suspect and losses.has_grown
    losses.add("second", 200)
    assert losses.is_suspect
    with pytest.raises(FatalRequestError, match=r"lost 3 times .* do not retry it: third"):
        losses.add("third", 200)


def test_losses_of_other_processes_count():
    losses = Losses(2, num_tokens=500)
    assert losses.is_suspect and not losses.has_grown
    with pytest.raises(FatalRequestError):
        losses.add("third", 500)
    with pytest.raises(FatalRequestError):
        Losses(3)


def test_a_long_answer_outlives_any_number_of_losses_with_much_progress_between():
    losses = Losses()
    for num_tokens in range(0, 10_000, 300):
        losses.add("an unreliable machine", num_tokens)
        assert losses.number == 1
