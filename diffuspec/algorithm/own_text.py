"""The text of a request as a suffix automaton, and what followed its suffix earlier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from diffuspec.algorithm.suffix_automaton import Match, SuffixAutomaton
from diffuspec.core.types import NO_TOKENS, DraftRequest, TokenIds, num_shared_tokens

BOUNDARY = -1  # between texts; no token
_LEAD = 16  # tokens at the end of a prompt, after which a prediction is expected
_MAX_REWIND = 512  # tokens at the end of a prefix that are taken back without a new automaton
_PIECE_TOKENS = 256  # a few milliseconds

# P(token right | parent right) by the number of tokens before it that matched: 1, 2, and so on, the
# drafted ones included. Measured on the embedded pair's questions.
_PRIORS = (0.31, 0.57, 0.66, 0.82, 0.82, 0.82, 0.87, 0.87, 0.87, 0.93)
_CONFIDENCES = tuple(math.log(prior) for prior in _PRIORS)


def confidence_after(num_matched: int) -> float:
    """Return ln P(the token after a match of this length, 1 or more, follows again)."""
    return _CONFIDENCES[min(num_matched, len(_CONFIDENCES)) - 1]


def text_of(request: DraftRequest) -> TokenIds:
    """Return a request's prefix, and before it the prediction, if any, as an earlier answer.

    Before the prediction stands the end of the prompt, so that the answer is expected to begin like
    the prediction.
    """
    if not len(request.prediction):
        return request.prefix
    prompt = request.prefix[: request.num_prompt_tokens]
    parts = prompt[-_LEAD:], request.prediction, [BOUNDARY], request.prefix
    return np.concatenate(parts, dtype=np.int32)


@dataclass(slots=True)
class OwnText:
    """The automaton of one request's text."""

    text: TokenIds = field(default_factory=lambda: NO_TOKENS)
    automaton: SuffixAutomaton = field(default_factory=lambda: SuffixAutomaton((), _MAX_REWIND))

    def follow(self, text: TokenIds) -> Match:
        """Change the automaton into that of another text; return its longest repeated suffix."""
        num_shared = num_shared_tokens(text, self.text)
        if not self.automaton.rewind(num_shared):
            self.automaton, num_shared = SuffixAutomaton((), _MAX_REWIND), 0
        self.automaton.extend(text[num_shared:].tolist())
        self.text = text
        return self.automaton.repeat()

    def pieces(self, text: TokenIds) -> Iterator[TokenIds]:
        """Yield prefixes of a text, to be followed one after the other before it.

        Each takes a few milliseconds; there is none where the text itself takes no more.
        """
        start = num_shared_tokens(text, self.text)
        if len(self.text) - start > _MAX_REWIND:
            start = 0
        for end in range(start + _PIECE_TOKENS, len(text), _PIECE_TOKENS):
            yield text[:end]

    def tokens_after(self, match: Match, most: int) -> list[int]:
        """Return `most` tokens that followed a match in its text, or as many as there are."""
        found: list[int] = self.text[match.end + 1 : match.end + 1 + most].tolist()
        return found[: found.index(BOUNDARY)] if BOUNDARY in found else found

    def token_after(self, match: Match) -> tuple[int, int] | None:
        """Return the token that followed a match at its earliest place, and the match's length.

        Of a match that only ends where a text ends, the longest part that also ends elsewhere
        counts. None: nothing matches.
        """
        while match.num_tokens and self._is_at_an_end(match):
            match = self.automaton.shorten(match)
        return (int(self.text[match.end + 1]), match.num_tokens) if match.num_tokens else None

    def _is_at_an_end(self, match: Match) -> bool:
        place = match.end + 1
        return place == len(self.text) or self.text[place] == BOUNDARY
