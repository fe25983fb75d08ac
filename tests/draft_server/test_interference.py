"""Interference is what drafts cost an engine's steps, not the noise of its steps."""

from __future__ import annotations

import pytest

from diffuspec.draft_server.interference import Interference


def test_steps_that_vary_as_much_with_drafting_beside_them_are_not_slowed_down_by_it():
    found = Interference()
    for number in range(200):
        found.observe(0.04 + (0.004 if number % 2 else -0.004), 0.04, together=0.02)
    assert found.value < 0.02


def test_an_engine_that_shares_its_processor_is_slowed_down_as_much_as_drafts_take():
    found = Interference()
    for _ in range(20):
        found.observe(0.06, 0.04, together=0.04)
    assert found.value == pytest.approx(1.0, rel=0.4)


def test_a_step_with_hardly_any_drafting_beside_it_tells_nothing():
    found = Interference()
    found.observe(0.06, 0.04, together=0.002)
    assert not found.value
