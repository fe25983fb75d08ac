import math
import random

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.calibration import AcceptanceModel
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import Draft, DraftTree, Verdict


def draft_of(*confidences: float) -> Draft:
    size = len(confidences)
    logs = tuple(math.log(confidence) for confidence in confidences)
    return Draft(chain(range(size)), logs, size)


def teach(model: AcceptanceModel, confidence: float, rate: float, times: int) -> None:
    rng = random.Random(0)
    for _ in range(times):
        nodes = (0,) if rng.random() < rate else ()
        model.observe(draft_of(confidence), Verdict((0,) * (len(nodes) + 1), nodes))


def reach_of(model: AcceptanceModel, confidence: float) -> float:
    return model.reach(draft_of(confidence))[0]


@given(st.floats(0.001, 1.0))
def test_a_new_model_returns_the_stated_confidence(confidence):
    assert reach_of(AcceptanceModel(), confidence) == pytest.approx(confidence, abs=0.06)


@pytest.mark.parametrize(("confidence", "rate"), [(0.95, 0.3), (0.3, 0.9), (0.6, 0.6), (0.01, 0.5)])
def test_the_model_converges_to_the_true_rate(confidence, rate):
    model = AcceptanceModel()
    teach(model, confidence, rate, 2000)
    assert reach_of(model, confidence) == pytest.approx(rate, abs=0.06)


def test_the_model_follows_a_rate_that_changes():
    model = AcceptanceModel()
    teach(model, 0.9, 0.9, 2000)
    teach(model, 0.9, 0.1, 1000)
    assert reach_of(model, 0.9) == pytest.approx(0.1, abs=0.08)


def test_reach_falls_along_a_path_and_branches_share_their_ancestors():
    tree = DraftTree((1, 2, 3, 4), (-1, 0, 0, 1))
    logs = tuple(math.log(c) for c in (0.9, 0.8, 0.15, 0.5))
    reach = AcceptanceModel().reach(Draft(tree, logs, 4))
    assert reach[1] / reach[0] == pytest.approx(0.8, abs=0.06)
    assert reach[2] / reach[0] == pytest.approx(0.15, abs=0.06)
    assert reach[3] < reach[1] < reach[0]


def test_only_nodes_below_an_accepted_one_are_counted():
    model = AcceptanceModel()
    draft = draft_of(0.9, 0.6, 0.3)
    for _ in range(50):
        model.observe(draft, Verdict((0, 7), (0,)))  # the second is wrong, the third is unknown
    assert reach_of(model, 0.9) > 0.98
    assert reach_of(model, 0.6) < 0.1
    assert reach_of(model, 0.3) == reach_of(AcceptanceModel(), 0.3)


def test_a_request_overrides_the_shared_model_which_learns_from_it():
    shared = AcceptanceModel()
    teach(shared, 0.9, 0.9, 400)
    before = reach_of(shared, 0.9)
    request = AcceptanceModel(shared)
    assert reach_of(request, 0.9) == before
    teach(request, 0.9, 0.0, 3)
    soon = reach_of(request, 0.9)
    teach(request, 0.9, 0.0, 30)
    assert before > soon > 0.5 > reach_of(request, 0.9), "slowly at first"
    assert 0.75 < reach_of(shared, 0.9) < before
    assert reach_of(AcceptanceModel(shared), 0.9) == reach_of(shared, 0.9)


@settings(max_examples=50)
@given(st.lists(st.floats(-50, 1, allow_nan=False), max_size=12), st.integers(0, 12))
def test_reach_is_a_falling_probability_for_any_confidences(confidences, num_accepted):
    model = AcceptanceModel()
    size = len(confidences)
    draft = Draft(chain(range(size)), tuple(confidences), size)
    nodes = tuple(range(min(num_accepted, size)))
    model.observe(draft, Verdict((0,) * (len(nodes) + 1), nodes))
    reach = model.reach(draft)
    assert all(0 <= r <= 1 for r in reach) and reach == sorted(reach, reverse=True)
