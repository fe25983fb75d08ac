"""The suffix automaton, against small examples worked by hand and a search through the text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from diffuspec.algorithm.suffix_automaton import ROOT, SuffixAutomaton

a_text = st.lists(st.integers(0, 2), max_size=24)


def places(text: list[int], part: list[int]) -> list[int]:
    """Return the index of the last token of every place where a part stands."""
    size = len(part)
    return [end for end in range(size - 1, len(text)) if text[end - size + 1 : end + 1] == part]


def test_states_of_a_small_text() -> None:
    """Of abbb: a, ab, abb, abbb each end once; b and bb end at several places."""
    a, b = 1, 2
    automaton = SuffixAutomaton([a, b, b, b])
    assert automaton.num_states == 7  # the root, four beginnings, and b and bb split off
    assert automaton.num_tokens == 4
    counts = automaton.counts()
    state_b = automaton.after(ROOT)[b]
    state_bb = automaton.after(state_b)[b]
    assert (counts[ROOT], counts[state_b], counts[state_bb]) == (4, 3, 2)
    assert counts[automaton.after(ROOT)[a]] == 1


@pytest.mark.parametrize(
    ("text", "num_tokens", "end"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 3, 2),
        ([1, 2, 3, 9, 2, 3, 8, 2, 3], 2, 2),  # the earliest place
        ([4, 4, 4], 2, 1),  # it may overlap the end itself
        ([1, 2, 3], 0, -1),
        ([], 0, -1),
    ],
)
def test_the_longest_end_that_stood_before_is_found_where_it_stood_first(
    text: list[int], num_tokens: int, end: int
) -> None:
    assert SuffixAutomaton(text).repeat()[:2] == (num_tokens, end)


@given(a_text)
def test_a_repeat_is_the_one_that_a_search_finds(text: list[int]) -> None:
    found = SuffixAutomaton(text).repeat()
    sizes = (size for size in range(len(text), 0, -1) if len(places(text, text[-size:])) > 1)
    size = next(sizes, 0)
    assert found.num_tokens == size
    assert found.end == (places(text, text[-size:])[0] if size else -1)


@given(a_text, a_text)
def test_a_match_of_other_tokens_is_the_one_that_a_search_finds(
    text: list[int], other: list[int]
) -> None:
    automaton = SuffixAutomaton(text)
    found = automaton.match(other)
    size = next((size for size in range(len(other), 0, -1) if places(text, other[-size:])), 0)
    assert found.num_tokens == size
    if size:
        ends = places(text, other[-size:])
        assert (found.end, automaton.counts()[found.state]) == (ends[0], len(ends))
        after = {text[end + 1] for end in ends if end + 1 < len(text)}
        assert set(automaton.after(found.state)) == after


@given(a_text, st.data())
def test_what_was_taken_back_leaves_no_trace(text: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(text)))
    automaton = SuffixAutomaton(text, max_rewind=24)
    assert automaton.rewind(size)
    assert vars(automaton) | {"_appends": None} == vars(SuffixAutomaton(text[:size])) | {
        "_appends": None
    }


def test_tokens_too_far_back_are_not_taken_back() -> None:
    automaton = SuffixAutomaton([1, 2, 1, 2, 1], max_rewind=2)
    assert not automaton.rewind(2)
    assert automaton.repeat().num_tokens == 3
    assert automaton.rewind(3) and not automaton.rewind(2)
    assert automaton.repeat().num_tokens == 1
