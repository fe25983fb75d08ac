import numpy as np
import pytest
from hypothesis import given, strategies as st

from diffuspec.algorithm.repeats import MAX_MATCH, MAX_REPEATS, Repeat, RepeatRates, Repeats


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
