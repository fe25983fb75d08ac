"""Policies of draft lengths, the paper's among them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, Verdict
from diffuspec.speculation.policies import PaperLength, make_policy

PAPER = DraftLengthConfig()


def verdict(num_accepted: int) -> Verdict:
    return Verdict((1,) * (num_accepted + 1), tuple(range(num_accepted)))


def raw_draft(num_tokens_before_eos: int) -> Draft:
    return Draft(chain(range(max(num_tokens_before_eos, 1))), (), num_tokens_before_eos)


def lengths_after(policy: PaperLength, outcomes: list[tuple[int, int]]) -> list[int]:
    """The lengths before and after (tokens before EOS, tokens accepted) of each step."""
    lengths = [policy.num_draft_tokens]
    for generated, accepted in outcomes:
        policy.observe(raw_draft(generated), verdict(accepted))
        lengths.append(policy.num_draft_tokens)
    return lengths


# ---- the paper's controller (Eqs. 9-11)


def test_the_paper_drafts_30_tokens_then_always_20_after_a_rejection():
    outcomes = [(30, 3)] + [(20, 20)] * 20
    assert lengths_after(PaperLength(PAPER), outcomes) == [30] + [20] * 21


def test_the_paper_drafts_long_while_everything_is_accepted():
    policy = PaperLength(PAPER)
    lengths = []
    for _ in range(8):
        k = policy.num_draft_tokens
        policy.observe(raw_draft(k), verdict(k))
        lengths.append(k)
    # G is 15, then 20, 25, 27.5, ...: with delta the length is clipped at k_max from the start.
    assert lengths == [30, 25] + [30] * 6


def test_the_ceiling_is_taken_and_not_the_floor():
    config = DraftLengthConfig(min_draft_tokens=1, max_draft_tokens=30, growth=0)
    assert lengths_after(PaperLength(config), [(5, 5)])[-1] == 3  # ceil(2.5)


def test_the_length_is_clipped_on_both_sides():
    config = DraftLengthConfig(min_draft_tokens=4, max_draft_tokens=6, growth=10)
    assert lengths_after(PaperLength(config), [(0, 0), (0, 0)]) == [6, 6, 6]
    assert lengths_after(PaperLength(config), [(2, 0), (0, 0)]) == [6, 4, 4]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_the_paper_follows_its_equations(outcomes):
    outcomes = [(generated, min(generated, accepted)) for generated, accepted in outcomes]
    generated_mean = accepted_mean = 0.0
    expected = [30]
    for generated, accepted in outcomes:
        generated_mean = 0.5 * generated_mean + 0.5 * generated
        accepted_mean = 0.5 * accepted_mean + 0.5 * accepted
        growth = 10 if accepted_mean >= generated_mean else 0
        expected.append(min(max(math.ceil(generated_mean + growth), 20), 30))
    assert lengths_after(PaperLength(PAPER), outcomes) == expected


@pytest.mark.parametrize(
    ("policy", "length"), [("paper", 30), ("cost_aware", None), ("fixed", 7), ("off", 0)]
)
def test_the_length_is_the_policys_or_left_to_the_scheduler(policy, length):
    params = SpeculationParams(policy=policy, num_draft_tokens=7)
    assert make_policy(params, PAPER).num_draft_tokens == length


@pytest.mark.parametrize("policy", ["cost_aware", "fixed", "off"])
def test_only_the_papers_lengths_follow_verdicts(policy):
    found = make_policy(SpeculationParams(policy=policy, num_draft_tokens=7), PAPER)
    before = found.num_draft_tokens
    found.observe(raw_draft(7), verdict(0))
    assert found.num_draft_tokens == before
