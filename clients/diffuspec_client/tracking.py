"""Tracking: which row of a batch is which request, for engines that do not say.

A request is recognised by its tokens: those it had in the last step are a prefix of those it has
now. Rows may move, and requests may end or pause without notice. A drafter treats two requests with
the same tokens alike, so it does not matter which is which.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

_MAX_GROWTH = 64  # tokens gained in one step, up to which a request that has moved is found at once
_MAX_ABSENT = 4  # a request that has been in no row for this many steps has ended


class _Tracked:
    """A request seen in an earlier step."""

    __slots__ = ("num_absent", "num_tokens", "request_id", "tokens")

    def __init__(self, request_id: str, tokens: Tokens) -> None:
        self.request_id = request_id
        self.tokens = tokens.copy()
        self.num_tokens = len(tokens)
        self.num_absent = 0

    @property
    def end(self) -> tuple[int, int]:
        """The number of its tokens, and the last of them."""
        return self.num_tokens, int(self.tokens[self.num_tokens - 1])

    def is_in(self, tokens: Tokens) -> bool:
        """Return whether these tokens begin with the request's."""
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
    """Identifies the requests of successive steps."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._rows: dict[int, _Tracked] = {}  # requests by the row they were last in
        self._absent: list[_Tracked] = []

    def match(self, rows: Sequence[int], prefixes: Sequence[Tokens]) -> tuple[list[str], list[str]]:
        """Return the names of the requests in these rows, and those that have ended.

        prefixes: the tokens of each row; at least one token each.
        """
        found: dict[int, _Tracked] = {}
        left = {id(one): one for one in (*self._rows.values(), *self._absent)}
        for row, prefix in zip(rows, prefixes, strict=True):
            before = self._rows.get(row)
            if before is not None and id(before) in left and before.is_in(prefix):
                found[row] = left.pop(id(before))
        moved = [(row, one) for row, one in zip(rows, prefixes, strict=True) if row not in found]
        by_end: dict[tuple[int, int], list[_Tracked]] = {}
        for one in left.values() if moved else ():
            by_end.setdefault(one.end, []).append(one)
        for row, prefix in moved:
            near = _longest(_grown_little(prefix, by_end, left), prefix)
            if near is not None:
                found[row] = left.pop(id(near))
        for row, prefix in moved:
            if row not in found:
                other = _longest(left.values(), prefix)
                if other is None:
                    other = _Tracked(f"r{next(self._numbers)}", prefix)
                left.pop(id(other), None)
                found[row] = other
        for row, prefix in zip(rows, prefixes, strict=True):
            found[row].grow(prefix)
            found[row].num_absent = 0
        self._rows = found
        for one in left.values():
            one.num_absent += 1
        self._absent = [one for one in left.values() if one.num_absent <= _MAX_ABSENT]
        ended = [one.request_id for one in left.values() if one.num_absent > _MAX_ABSENT]
        return [found[row].request_id for row in rows], ended


def _grown_little(
    prefix: Tokens, by_end: Mapping[tuple[int, int], list[_Tracked]], left: Mapping[int, _Tracked]
) -> Iterator[_Tracked]:
    """Yield the requests slightly shorter than this prefix, the longest first."""
    size = len(prefix)
    for num_less, token in enumerate(reversed(prefix[-_MAX_GROWTH:].tolist())):
        for one in by_end.get((size - num_less, token), ()):
            if id(one) in left:
                yield one


def _longest(requests: Iterable[_Tracked], prefix: Tokens) -> _Tracked | None:
    """Return the longest request that this prefix continues."""
    fitting = [one for one in requests if one.is_in(prefix)]
    return max(fitting, key=lambda one: one.num_tokens, default=None)
