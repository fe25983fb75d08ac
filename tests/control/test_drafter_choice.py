"""Which drafter is asked, from the rates that were measured. Time is made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from diffuspec.control.drafter_choice import DrafterChoice, DrafterRates

FAST, SLOW = (6, 1.0), (1, 1.0)  # tokens and seconds of a step
NEARLY = (11, 2.0)


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
    assert asked["one"] > 40, "its own steps count more"
    assert DrafterChoice(shared).choose() in steps


def test_a_drafter_on_trial_is_asked_until_a_step_with_it_was_measured() -> None:
    choice = DrafterChoice(DrafterRates(["one", "two"]))
    first = choice.choose()
    assert choice.choose() == first
    choice.observe(first, *FAST)
    second = choice.choose()
    assert second != first and choice.choose() == second
