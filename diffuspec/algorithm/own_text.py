"""The text of a request as a suffix automaton, to find earlier continuations of its end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from diffuspec.algorithm.suffix_automaton import Match, SuffixAutomaton
from diffuspec.core.types import NO_TOKENS, DraftRequest, TokenIds, num_shared_tokens

BOUNDARY = -1  # not a token: separates texts
_LEAD = 16  # last tokens of the prompt, repeated before a prediction
_MAX_REWIND = 512  # latest tokens that can be removed without rebuilding the automaton
_PIECE_TOKENS = 256  # number of tokens that takes a few milliseconds

# P(token accepted | parent accepted) after 1, 2, ... matching tokens, drafted ones included.
# Measured on the embedded pair's questions.
_PRIORS = (0.31, 0.57, 0.66, 0.82, 0.82, 0.82, 0.87, 0.87, 0.87, 0.93)
_CONFIDENCES = tuple(math.log(prior) for prior in _PRIORS)


def confidence_after(num_matched: int) -> float:
    """Return ln P(a token that followed a match of this length, 1 or more, follows again)."""
    return _CONFIDENCES[min(num_matched, len(_CONFIDENCES)) - 1]


def text_of(request: DraftRequest) -> TokenIds:
    """Return a request's prefix, with its prediction, if any, before it like an earlier answer.

    The end of the prompt is repeated before the prediction, so that at the beginning of the answer
    the beginning of the prediction is found.
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
        """Turn the automaton into that of `text`; return its longest suffix that occurs earlier."""
        num_shared = num_shared_tokens(text, self.text)
        if not self.automaton.rewind(num_shared):
            self.automaton, num_shared = SuffixAutomaton((), _MAX_REWIND), 0
        self.automaton.extend(text[num_shared:].tolist())
        self.text = text
        return self.automaton.repeat()

    def pieces(self, text: TokenIds) -> Iterator[TokenIds]:
        """Yield growing prefixes of a long text; `follow` takes a few milliseconds for each.

        After them, `follow` takes no longer for the whole text.
        """
        start = num_shared_tokens(text, self.text)
        if len(self.text) - start > _MAX_REWIND:
            start = 0
        for end in range(start + _PIECE_TOKENS, len(text), _PIECE_TOKENS):
            yield text[:end]

    def tokens_after(self, match: Match, most: int) -> list[int]:
        """Return at most `most` tokens that followed a match in its text."""
        found: list[int] = self.text[match.end + 1 : match.end + 1 + most].tolist()
        return found[: found.index(BOUNDARY)] if BOUNDARY in found else found

    def token_after(self, match: Match) -> tuple[int, int] | None:
        """Return the token that followed a match at its earliest place, and the match's length.

        A match that occurs only at the end of a text is shortened until it occurs elsewhere. None:
        no such match remains.
        """
        while match.num_tokens and self._is_at_an_end(match):
            match = self.automaton.shorten(match)
        return (int(self.text[match.end + 1]), match.num_tokens) if match.num_tokens else None

    def _is_at_an_end(self, match: Match) -> bool:
        place = match.end + 1
        return place == len(self.text) or self.text[place] == BOUNDARY
