"""Policies of draft lengths, the paper's among them, and the choice of a drafter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.adl.policies import DrafterChoice, DrafterRates, PaperLength, make_policy
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, Verdict

PAPER = DraftLengthConfig()
FAST, SLOW = (6, 1.0), (1, 1.0)  # tokens and seconds of a step
NEARLY = (11, 2.0)


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


# ---- the choice of a drafter


def run(
    choice: DrafterChoice, steps: Mapping[str, tuple[int, float]], num_steps: int
) -> Counter[str]:
    """Take steps; return how often each drafter was asked."""
    asked = Counter[str]()
    for _ in range(num_steps):
        name = choice.choose()
        asked[name] += 1
        choice.observe(name, *steps[name])
    return asked


def test_every_drafter_is_tried_and_the_fastest_is_asked() -> None:
    steps = {"slow": SLOW, "fast": FAST, "nearly": NEARLY}
    choice = DrafterChoice(DrafterRates(list(steps)))
    assert set(run(choice, steps, 3)) == set(steps)
    asked = run(choice, steps, 300)
    lost = sum(
        number * steps[name][1] * (1 - steps[name][0] / steps[name][1] / 6)
        for name, number in asked.items()
    )
    seconds = sum(number * steps[name][1] for name, number in asked.items())
    assert lost < 0.06 * seconds
    assert asked["fast"] > asked["nearly"] > asked["slow"] > 0


def test_a_single_drafter_is_always_asked() -> None:
    assert run(DrafterChoice(DrafterRates(["one"])), {"one": FAST}, 5) == {"one": 5}


def test_the_choice_follows_when_another_drafter_becomes_faster() -> None:
    choice = DrafterChoice(DrafterRates(["one", "two"]))
    run(choice, {"one": FAST, "two": (3, 1.0)}, 50)
    asked = run(choice, {"one": SLOW, "two": (3, 1.0)}, 60)
    assert asked["two"] > 30


def test_a_request_begins_with_what_others_have_measured_and_learns_for_itself() -> None:
    shared, steps = DrafterRates(["one", "two"]), {"one": SLOW, "two": FAST}
    run(DrafterChoice(shared), steps, 40)
    asked = run(DrafterChoice(shared), steps, 10)
    assert asked["two"] >= 9
    other = DrafterChoice(shared)
    asked = run(other, {"one": FAST, "two": SLOW}, 60)
    assert asked["one"] >= 40, "its own steps count more"
    assert DrafterChoice(shared).choose() in steps


def test_a_drafter_on_trial_is_asked_until_a_step_with_it_was_measured() -> None:
    choice = DrafterChoice(DrafterRates(["one", "two"]))
    first = choice.choose()
    assert choice.choose() == first
    choice.observe(first, *FAST)
    second = choice.choose()
    assert second != first and choice.choose() == second
