"""Tracking: which row of a batch is which request, where an engine does not say.

A request is recognised by its tokens: what it had in the last step is a prefix of what it has now.
Rows may move, and requests may end or pause without a word. Two requests with the same tokens are
alike to a drafter, so it does not matter which of them is which.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

_MAX_ABSENT = 4  # steps after which a request that is in no row has ended


class _Tracked:
    """A request that was in a row before."""

    __slots__ = ("num_absent", "num_tokens", "request_id", "tokens")

    def __init__(self, request_id: str, tokens: Tokens) -> None:
        self.request_id = request_id
        self.tokens = tokens.copy()
        self.num_tokens = len(tokens)
        self.num_absent = 0

    def is_in(self, tokens: Tokens) -> bool:
        """Whether these tokens go on from the request's."""
        size = self.num_tokens
        if size > len(tokens) or self.tokens[size - 1] != tokens[size - 1]:
            return False
        return bool(np.array_equal(self.tokens[:size], tokens[:size]))

    def grow(self, tokens: Tokens) -> None:
        size, end = self.num_tokens, len(tokens)
        if end > len(self.tokens):
            grown = np.empty(2 * end, np.int32)
            grown[:size] = self.tokens[:size]
            self.tokens = grown
        self.tokens[size:end] = tokens[size:]
        self.num_tokens = end


class Tracker:
    """Names the requests of successive steps."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._rows: dict[int, _Tracked] = {}  # by the row that each was in last
        self._absent: list[_Tracked] = []

    def match(self, rows: Sequence[int], prefixes: Sequence[Tokens]) -> tuple[list[str], list[str]]:
        """Return the names of the requests in these rows, and those that have ended.

        prefixes: the tokens of each row, at least one.
        """
        found: dict[int, _Tracked] = {}
        left = {id(one): one for one in (*self._rows.values(), *self._absent)}
        for row, prefix in zip(rows, prefixes, strict=True):
            before = self._rows.get(row)
            if before is not None and id(before) in left and before.is_in(prefix):
                found[row] = left.pop(id(before))
        for row, prefix in zip(rows, prefixes, strict=True):
            if row not in found:
                longest = max(
                    [one for one in left.values() if one.is_in(prefix)],
                    key=lambda one: one.num_tokens,
                    default=None,
                )
                if longest is None:
                    longest = _Tracked(f"r{next(self._numbers)}", prefix)
                left.pop(id(longest), None)
                found[row] = longest
        for row, prefix in zip(rows, prefixes, strict=True):
            found[row].grow(prefix)
            found[row].num_absent = 0
        self._rows = found
        for one in left.values():
            one.num_absent += 1
        self._absent = [one for one in left.values() if one.num_absent <= _MAX_ABSENT]
        ended = [one.request_id for one in left.values() if one.num_absent > _MAX_ABSENT]
        return [found[row].request_id for row in rows], ended
