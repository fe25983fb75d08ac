"""Repeats: what followed the same tokens earlier in a text.

Answers copy: names, numbers and phrases of the prompt and of themselves. After a wrong draft token
the right one is, about every other time, what stood behind the same tokens before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diffuspec.core.types import TokenIds

MAX_MATCH = 4  # tokens of context compared
MAX_REPEATS = 3  # answers given
_MAX_PLACES = 16  # looked at, the latest first

# How often an answer was right that stood first, second, third, by the tokens matched (1 to 4);
# measured on the embedded pair, where the draft went wrong.
_PRIORS = ((0.4, 0.1, 0.07), (0.65, 0.2, 0.1), (0.6, 0.2, 0.1), (0.85, 0.25, 0.2))
_PRIOR_WEIGHT = 6.0
_MAX_WEIGHT = 400.0  # older counts fade once there are so many


@dataclass(frozen=True, slots=True)
class Repeat:
    """A token that followed the same context before."""

    token_id: int
    num_matched: int  # tokens of context, 1 to MAX_MATCH
    rank: int  # from 0, longer matches first, then later ones


class Repeats:
    """An index over one growing text."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # of each token, ascending

    def extend(self, text: TokenIds) -> None:
        """Take in what a text has gained: it begins with what was taken in before."""
        for token_id in text[len(self._tokens) :].tolist():
            self._places[token_id].append(len(self._tokens))
            self._tokens.append(token_id)

    def after(self, context: Sequence[int], besides: Collection[int] = ()) -> list[Repeat]:
        """Return what followed the end of this context, at most MAX_REPEATS, likeliest first."""
        tokens = self._tokens
        found: dict[int, int] = {}  # token id -> tokens matched, for the best of its places
        for place in reversed(self._places.get(context[-1], [])[-_MAX_PLACES:]):
            if place + 1 < len(tokens) and tokens[place + 1] not in besides:
                num_matched = self._num_matched(context, place)
                if num_matched > found.get(tokens[place + 1], 0):
                    found[tokens[place + 1]] = num_matched
        best = sorted(found.items(), key=lambda item: -item[1])[:MAX_REPEATS]
        return [Repeat(token_id, length, rank) for rank, (token_id, length) in enumerate(best)]

    def _num_matched(self, context: Sequence[int], place: int) -> int:
        """Return how many tokens up to this place are those at the context's end."""
        limit = min(MAX_MATCH, len(context), place + 1)
        for length in range(1, limit):
            if self._tokens[place - length] != context[-1 - length]:
                return length
        return limit


class RepeatRates:
    """How often repeats are right, learnt from where drafts went wrong."""

    def __init__(self) -> None:
        self._seen = [[_PRIOR_WEIGHT] * MAX_REPEATS for _ in range(MAX_MATCH)]
        self._right = [[_PRIOR_WEIGHT * prior for prior in row] for row in _PRIORS]

    def probability(self, repeat: Repeat) -> float:
        row, column = repeat.num_matched - 1, repeat.rank
        return self._right[row][column] / self._seen[row][column]

    def count(self, repeat: Repeat, is_right: bool) -> None:
        row, column = repeat.num_matched - 1, repeat.rank
        if self._seen[row][column] >= _MAX_WEIGHT:
            self._seen[row][column] /= 2
            self._right[row][column] /= 2
        self._seen[row][column] += 1
        self._right[row][column] += is_right
