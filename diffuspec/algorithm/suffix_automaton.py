"""The suffix automaton of a growing sequence of tokens: finds earlier occurrences of its suffixes.

A state stands for substrings that end at the same places. Transitions on the tokens of a substring
lead from state 0 to its state; a state's link leads to its longest suffix that also ends elsewhere.
Appending a token takes constant time on average, and at most two states (Blumer et al. 1985).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ROOT = 0
_NONE = -1


class Match(NamedTuple):
    """The longest suffix of a sequence that occurs in a text, and where it ends there."""

    num_tokens: int  # tokens matched; 0: not even the last one
    end: int  # index of its last token in the text, at its earliest occurrence
    state: int


class _Append(NamedTuple):
    """The changes of one append, so that it can be undone."""

    token_id: int
    num_states: int  # number of states before the append
    last: int  # state of the whole sequence before the append
    created: list[int]  # states that had no transition on the token
    redirected: list[int]  # states whose transition led to `split`
    split: int  # the state that was split; _NONE: no state
    link: int  # link of the split state before the split


class SuffixAutomaton:
    """Grows by tokens at the end; up to `max_rewind` of the latest can be removed again."""

    def __init__(self, token_ids: Iterable[int], max_rewind: int = 0) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._links = [_NONE]
        self._lengths = [0]  # length of each state's longest substring
        self._ends = [_NONE]  # index of the last token at a state's earliest occurrence
        self._last = ROOT
        self._appends: deque[_Append] = deque(maxlen=max_rewind)
        self.extend(token_ids)

    @property
    def num_tokens(self) -> int:
        return self._lengths[self._last]

    @property
    def num_states(self) -> int:
        return len(self._links)

    def extend(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self._append(token_id)

    def rewind(self, num_tokens: int) -> bool:
        """Remove all tokens after the first num_tokens; return False if that are too many.

        In that case the automaton is unchanged.
        """
        num_back = self.num_tokens - num_tokens
        if num_back > len(self._appends):
            return False
        for _ in range(num_back):
            self._take_back(self._appends.pop())
        return True

    def repeat(self) -> Match:
        """Return the longest suffix of the sequence that also occurs earlier in it."""
        return self.shorten(Match(self.num_tokens, _NONE, self._last))

    def match(self, token_ids: Sequence[int]) -> Match:
        """Return the longest suffix of other tokens that occurs in this sequence."""
        match = Match(0, _NONE, ROOT)
        for token_id in token_ids:
            match = self.step(match, token_id)
        return match

    def step(self, match: Match, token_id: int) -> Match:
        """Return the match of a text with one more token, from the match of that text."""
        state, length = match.state, match.num_tokens
        while state != ROOT and token_id not in self._next[state]:
            state = self._links[state]
            length = self._lengths[state]
        if token_id in self._next[state]:
            state = self._next[state][token_id]
            length += 1
        return self._match(state, length)

    def shorten(self, match: Match) -> Match:
        """Return the longest suffix of a match, not empty, that ends at more places."""
        state = max(self._links[match.state], ROOT)
        return self._match(state, self._lengths[state])

    def after(self, state: int) -> dict[int, int]:
        """Return the tokens that follow a state's substrings, and the states that they lead to."""
        return self._next[state]

    def counts(self) -> list[int]:
        """Return the number of places at which each state's substrings end, [num_states]."""
        # 1 for the states of the sequence's prefixes; 0 for the others, which come from splits.
        ends = zip(self._lengths, self._ends, strict=True)
        counts = [int(length == end + 1) for length, end in ends]
        counts[ROOT] = 0
        for state in sorted(range(1, self.num_states), key=self._lengths.__getitem__, reverse=True):
            counts[self._links[state]] += counts[state]
        return counts

    def _match(self, state: int, num_tokens: int) -> Match:
        return Match(num_tokens, self._ends[state], state)

    def _append(self, token_id: int) -> None:
        num_states, last = self.num_states, self._last
        length = self._lengths[last] + 1
        new = self._last = self._add({}, length, length - 1)
        created: list[int] = []
        state = last
        while state != _NONE and token_id not in self._next[state]:
            self._next[state][token_id] = new
            created.append(state)
            state = self._links[state]
        split, link, redirected = _NONE, _NONE, list[int]()
        if state == _NONE:
            self._links[new] = ROOT
        else:
            found = self._next[state][token_id]
            if self._lengths[found] > self._lengths[state] + 1:
                split, link = found, self._links[found]
                found, redirected = self._split(state, token_id, found)
            self._links[new] = found
        if self._appends.maxlen:
            change = _Append(token_id, num_states, last, created, redirected, split, link)
            self._appends.append(change)

    def _add(self, transitions: dict[int, int], length: int, end: int) -> int:
        self._next.append(transitions)
        self._links.append(_NONE)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._links) - 1

    def _split(self, state: int, token_id: int, found: int) -> tuple[int, list[int]]:
        """Give the shorter substrings of `found` a state of their own.

        Returns it, and the states whose transition now leads to it.
        """
        length = self._lengths[state] + 1
        clone = self._add(self._next[found].copy(), length, self._ends[found])
        self._links[clone], self._links[found] = self._links[found], clone
        redirected: list[int] = []
        while state != _NONE and self._next[state].get(token_id) == found:
            self._next[state][token_id] = clone
            redirected.append(state)
            state = self._links[state]
        return clone, redirected

    def _take_back(self, change: _Append) -> None:
        for state in change.created:
            del self._next[state][change.token_id]
        if change.split != _NONE:
            self._links[change.split] = change.link
            for state in change.redirected:
                self._next[state][change.token_id] = change.split
        del self._next[change.num_states :], self._links[change.num_states :]
        del self._lengths[change.num_states :], self._ends[change.num_states :]
        self._last = change.last
