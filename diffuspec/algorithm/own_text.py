"""The text of a request as a suffix automaton: where its end stood before, and what followed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from diffuspec.algorithm.suffix_automaton import Match, SuffixAutomaton
from diffuspec.core.types import NO_TOKENS, TokenIds, num_shared_tokens

_MAX_REWIND = 512  # tokens at the end of a prefix that are taken back without a new automaton
_PIECE_TOKENS = 256  # a few milliseconds

# P(token right | parent right) by the number of tokens before it that matched: 1, 2, and so on, the
# drafted ones included. Measured on the embedded pair's questions.
_PRIORS = (0.31, 0.57, 0.66, 0.82, 0.82, 0.82, 0.87, 0.87, 0.87, 0.93)
_CONFIDENCES = tuple(math.log(prior) for prior in _PRIORS)


def confidence_after(num_matched: int) -> float:
    """Return ln P(what followed a match of this length, 1 or more, follows again)."""
    return _CONFIDENCES[min(num_matched, len(_CONFIDENCES)) - 1]


@dataclass(slots=True)
class OwnText:
    """The automaton of one request's prefix."""

    prefix: TokenIds = field(default_factory=lambda: NO_TOKENS)
    automaton: SuffixAutomaton = field(default_factory=lambda: SuffixAutomaton((), _MAX_REWIND))

    def follow(self, prefix: TokenIds) -> Match:
        """Change the automaton into that of another prefix; return the match of its end."""
        num_shared = num_shared_tokens(prefix, self.prefix)
        if not self.automaton.rewind(num_shared):
            self.automaton, num_shared = SuffixAutomaton((), _MAX_REWIND), 0
        self.automaton.extend(prefix[num_shared:].tolist())
        self.prefix = prefix
        return self.automaton.repeat()

    def pieces(self, prefix: TokenIds) -> Iterator[TokenIds]:
        """Yield beginnings of a prefix, to be followed one after the other before it.

        Each takes a few milliseconds; there is none where the prefix itself takes no more.
        """
        start = num_shared_tokens(prefix, self.prefix)
        if len(self.prefix) - start > _MAX_REWIND:
            start = 0
        for end in range(start + _PIECE_TOKENS, len(prefix), _PIECE_TOKENS):
            yield prefix[:end]

    def token_after(self, match: Match) -> tuple[int, int] | None:
        """Return the token that followed a match at its earliest place, and the match's length.

        Of a match that only ends where the text ends, the longest part that also ends elsewhere
        counts. None: nothing matches.
        """
        while match.num_tokens and match.end + 1 == len(self.prefix):
            match = self.automaton.shorten(match)
        return (int(self.prefix[match.end + 1]), match.num_tokens) if match.num_tokens else None
