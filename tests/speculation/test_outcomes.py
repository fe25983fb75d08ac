"""Which outcomes are thought likely, against drafts and texts whose truth is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.calibration import AcceptanceModel
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import Draft, DraftTree, Verdict
from diffuspec.speculation.acceptance import Acceptance, SharedAcceptance
from diffuspec.speculation.outcomes import (
    MAX_MATCH,
    MAX_REPEATS,
    Outcome,
    OutcomeModel,
    OutcomeRanking,
    Repeat,
    RepeatRates,
    Repeats,
    outcome_of,
)

PREFIX = np.array([1, 2, 3], np.int32)


def logs(*probabilities: float) -> tuple[float, ...]:
    return tuple(math.log(probability) for probability in probabilities)


def alternatives_of(*columns: dict[int, float]) -> tuple[tuple[tuple[int, float], ...], ...]:
    return tuple(tuple(zip(c, logs(*c.values()), strict=True)) for c in columns)


# Root -> 10 -> 11, and what else may stand at each of the three places.
DRAFT = Draft(
    chain([10, 11]),
    logs(0.9, 0.4),
    2,
    alternatives=alternatives_of({10: 0.9, 20: 0.08}, {11: 0.4, 21: 0.35, 22: 0.2}, {23: 0.9}),
)


def ranked(draft: Draft, prefix=PREFIX, ranking: OutcomeRanking | None = None) -> list[Outcome]:
    ranking = ranking or OutcomeRanking(OutcomeModel())
    return [one.outcome for one in ranking.rank(draft, reach_of(draft), prefix)]


def reach_of(draft: Draft) -> list[float]:
    return AcceptanceModel().reach(draft)


def verdict(nodes: tuple[int, ...], token_id: int) -> Verdict:
    return Verdict((*(10 + node for node in nodes), token_id), nodes)


def test_outcomes_of_all_nodes_are_ranked_by_probability():
    assert ranked(DRAFT) == [
        Outcome(1, 23),  # 0.9 * 0.4 * 0.9
        Outcome(0, 21),  # 0.9 * 0.35
        Outcome(0, 22),
        Outcome(-1, 20),
    ]


def test_the_token_of_a_child_is_not_an_outcome():
    assert not {Outcome(-1, 10), Outcome(0, 11)} & set(ranked(DRAFT))


def test_an_outcome_lists_the_tokens_that_it_commits():
    tree = DraftTree((5, 6, 7), (-1, -1, 1))
    assert Outcome(2, 9).committed(tree) == (6, 7, 9)
    assert Outcome(-1, 9).committed(tree) == (9,)
    assert outcome_of(Verdict((6, 7, 9), (1, 2))) == Outcome(2, 9)
    assert outcome_of(Verdict((4,), ())) == Outcome(-1, 4)


def test_a_repeat_of_earlier_text_is_an_outcome_too():
    prefix = np.array([7, 8, 10, 30, 7, 8], np.int32)  # after 8 and then 10 there was 30
    draft = Draft(chain([10, 11]), logs(0.9, 0.5), 2)
    assert ranked(draft, prefix)[0] == Outcome(0, 30)


def test_scores_of_alternatives_and_repeats_add_up():
    prefix = np.array([7, 8, 21, 5, 7, 8], np.int32)
    draft = Draft(chain([10]), logs(0.5), 1, alternatives=alternatives_of({20: 0.3, 21: 0.2}, {}))
    scores = {
        one.outcome.token_id: one.score
        for one in OutcomeRanking(OutcomeModel()).rank(draft, reach_of(draft), prefix)
    }
    assert scores[21] > scores[20]


def test_probabilities_converge_to_the_measured_rate():
    shared, rng = SharedAcceptance(32), random.Random(0)
    hits = claimed = 0.0
    for step in range(600):
        acceptance = Acceptance(shared)
        first = acceptance.rank(DRAFT, PREFIX)[0]
        happens = rng.random() < 0.25
        acceptance.observe_verdict(DRAFT, verdict((0, 1), 23) if happens else verdict((), 49))
        if step >= 300:
            hits, claimed = hits + happens, claimed + first.probability
    assert claimed / 300 == pytest.approx(hits / 300, abs=0.06)


def test_requests_share_the_success_rates_of_repeats():
    shared = OutcomeModel()
    prefix = np.array([7, 8, 30, 9, 7, 8], np.int32)
    draft = Draft(chain([10]), logs(0.5), 1)
    before = OutcomeRanking(shared).rank(draft, reach_of(draft), prefix)[0]
    for _ in range(30):
        ranking = OutcomeRanking(shared)
        ranking.rank(draft, reach_of(draft), prefix)
        ranking.observe(verdict((), 31))
    after = OutcomeRanking(shared).rank(draft, reach_of(draft), prefix)[0]
    assert before.outcome == after.outcome == Outcome(-1, 30)
    assert after.score < before.score / 2 and after.probability < before.probability / 2


def test_a_verdict_before_any_ranking_does_no_harm():
    ranking = OutcomeRanking(OutcomeModel())
    ranking.observe(verdict((0,), 21))
    assert ranked(DRAFT, ranking=ranking)


@st.composite
def a_draft(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    numbers = st.one_of(st.floats(-50, 1), st.sampled_from([math.nan, -math.inf, 1e300]))
    confidences = tuple(draw(numbers) for _ in range(size))
    column = st.lists(st.tuples(st.integers(0, 9), numbers), max_size=8).map(tuple)
    alternatives = tuple(draw(column) for _ in range(size + 1)) if draw(st.booleans()) else ()
    return Draft(DraftTree(tuple(range(size)), parents), confidences, 0, alternatives=alternatives)


@pytest.mark.no_cover
@settings(max_examples=150)
@given(a_draft(), st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 9))
def test_any_draft_gives_an_ordered_and_bounded_ranking(draft, prefix, token_id):
    ranking = OutcomeRanking(OutcomeModel())
    text = np.array(prefix, np.int32)
    for _ in range(3):
        found = ranking.rank(draft, reach_of(draft), text)
        scores = [one.score for one in found]
        assert len(found) <= MAX_OUTCOMES and scores == sorted(scores, reverse=True)
        assert len({one.outcome for one in found}) == len(found)
        assert all(0 <= one.probability <= 1 for one in found)
        ranking.observe(Verdict((token_id,), ()))
        text = np.append(text, np.int32(token_id))


def over(*tokens: int) -> Repeats:
    repeats = Repeats()
    repeats.extend(np.array(tokens, np.int32))
    return repeats


def test_longer_matches_come_first_then_later_places():
    repeats = over(1, 2, 9, 5, 3, 2, 7, 6, 2, 8, 4)
    found = repeats.after([1, 2])
    assert [(one.token_id, one.num_matched, one.rank) for one in found] == [
        (9, 2, 0),
        (8, 1, 1),
        (7, 1, 2),
    ]


def test_the_last_token_of_a_text_is_followed_by_nothing():
    assert over(1, 2).after([2]) == []
    assert over(1, 2).after([5]) == []


def test_tokens_given_in_besides_are_left_out():
    assert [one.token_id for one in over(2, 9, 2, 8, 1).after([2], besides={8})] == [9]


def test_the_index_follows_a_growing_text():
    repeats = over(1, 2, 3)
    repeats.extend(np.array([1, 2, 3, 1], np.int32))
    assert repeats.after([3, 1]) == [Repeat(2, 1, 0)]
    repeats.extend(np.array([1, 2, 3, 1, 4], np.int32))
    assert [one.token_id for one in repeats.after([3, 1])] == [4, 2]


def test_no_more_context_is_compared_than_needed():
    text = [*range(10), 0]
    assert over(*text).after(list(range(9)))[0].num_matched == MAX_MATCH


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_every_repeat_occurs_in_the_text(text, context):
    found = over(*text).after(context)
    assert len(found) <= MAX_REPEATS
    lengths = [one.num_matched for one in found]
    assert lengths == sorted(lengths, reverse=True)
    for one in found:
        wanted = [*context[-one.num_matched :], one.token_id]
        assert any(text[i : i + len(wanted)] == wanted for i in range(len(text)))


def test_rates_are_learnt_by_match_and_rank():
    rates = RepeatRates()
    near, far = Repeat(5, 4, 0), Repeat(5, 1, 2)
    assert rates.probability(near) > rates.probability(far)
    for _ in range(1000):
        rates.count(near, False)
        rates.count(far, True)
    assert rates.probability(near) == pytest.approx(0.0, abs=0.05)
    assert rates.probability(far) == pytest.approx(1.0, abs=0.05)
