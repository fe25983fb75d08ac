"""Repeats: tokens that followed the same context earlier in a text.

Answers repeat names, numbers and phrases of the prompt and of themselves. About half of the time
the token that corrects a wrong draft token followed the same context before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diffuspec.core.types import TokenIds

MAX_MATCH = 4  # most tokens of context that are compared
MAX_REPEATS = 3  # most repeats of one context
_MAX_PLACES = 16  # earlier places compared, latest first

# P(right) of the first, second and third repeat, by number of tokens matched (1 to 4); measured on
# the embedded pair at places where the draft was wrong.
_PRIORS = ((0.4, 0.1, 0.07), (0.65, 0.2, 0.1), (0.6, 0.2, 0.1), (0.85, 0.25, 0.2))
_PRIOR_WEIGHT = 6.0
_MAX_WEIGHT = 400.0  # counts are halved when they reach this, so that old ones fade


@dataclass(frozen=True, slots=True)
class Repeat:
    """A token that followed the same context earlier."""

    token_id: int
    num_matched: int  # tokens of context, 1 to MAX_MATCH
    rank: int  # counted from 0: longer matches first, then later ones


class Repeats:
    """An index of the tokens of one growing text."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # places of each token

    def extend(self, text: TokenIds) -> None:
        """Add the new tokens of a text, which must begin with the tokens added so far."""
        for token_id in text[len(self._tokens) :].tolist():
            self._places[token_id].append(len(self._tokens))
            self._tokens.append(token_id)

    def after(self, context: Sequence[int], besides: Collection[int] = ()) -> list[Repeat]:
        """Return up to MAX_REPEATS tokens that followed the context's end, likeliest first.

        Tokens in `besides` are left out.
        """
        tokens = self._tokens
        found: dict[int, int] = {}  # token id -> most tokens matched at any place
        for place in reversed(self._places.get(context[-1], [])[-_MAX_PLACES:]):
            if place + 1 < len(tokens) and tokens[place + 1] not in besides:
                num_matched = self._num_matched(context, place)
                if num_matched > found.get(tokens[place + 1], 0):
                    found[tokens[place + 1]] = num_matched
        best = sorted(found.items(), key=lambda item: -item[1])[:MAX_REPEATS]
        return [Repeat(token_id, length, rank) for rank, (token_id, length) in enumerate(best)]

    def _num_matched(self, context: Sequence[int], place: int) -> int:
        """Return how many tokens before and at `place` equal the context's end."""
        limit = min(MAX_MATCH, len(context), place + 1)
        for length in range(1, limit):
            if self._tokens[place - length] != context[-1 - length]:
                return length
        return limit


class RepeatRates:
    """P(right) of repeats by match length and rank, learnt where drafts were wrong."""

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
