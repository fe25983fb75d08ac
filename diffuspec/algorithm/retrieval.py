"""Retrieval: adds the token that followed the same text earlier to the candidates of a lattice.

At each node of a draft tree, the text so far is prompt, answer and the tokens down to the node. Its
longest suffix that occurred before, in prediction, prompt or answer, suggests the next token (SAM
decoding, arXiv 2411.10666). That token joins the candidates of the lattice's column, so that one
tree grows from both.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from diffuspec.algorithm.own_text import OwnText, confidence_after, text_of
from diffuspec.algorithm.per_request import PerRequest
from diffuspec.algorithm.scoring import Column, Node, make_column
from diffuspec.algorithm.suffix_automaton import Match
from diffuspec.core.types import DraftRequest

# The lattice's probability of a found token that is no candidate: a share of the probability mass
# that its column leaves to other tokens.
_OTHER_SHARE = math.log(0.05)
_LEAST_OTHERS = math.log(1e-3)
_LEAST = 1e-6  # probabilities stay this far from 0 and 1

# ln odds(accepted) = bias + a * ln odds by lattice and proxy + b * ln odds by the earlier text.
# Fitted to the embedded pair's answers, for found tokens that were candidates and for others.
_CANDIDATE = (1.9, 0.58, 0.79)
_NO_CANDIDATE = (0.15, 0.93, 0.91)


class Found(NamedTuple):
    """A token that followed the same text earlier."""

    token_id: int
    confidence: float  # ln P(it follows again), ignoring the lattice


class Retrieval:
    """Finds continuations in each request's own text."""

    def __init__(
        self, max_requests: int, eos_token_ids: Collection[int] = (), predicted_only: bool = False
    ) -> None:
        """`predicted_only`: only for requests with a prediction."""
        self._predicted_only = predicted_only
        self._texts = PerRequest(OwnText, max_requests)
        self._eos_token_ids = frozenset(eos_token_ids)

    def follow(self, request: DraftRequest) -> Continuations | None:
        """Return the continuations of a request's prefix, valid until the next call for it."""
        if self._predicted_only and not len(request.prediction):
            return None
        text = self._texts.of(request.request_id)
        return Continuations(text, text.follow(text_of(request)), self._eos_token_ids)


class Continuations:
    """The tokens that may follow one prefix and the nodes below it."""

    def __init__(self, text: OwnText, match: Match, eos_token_ids: Collection[int]) -> None:
        self._text = text
        self._eos_token_ids = eos_token_ids
        self._matches: dict[int, Match] = {-1: match}  # by id of the node; -1: the prefix

    def after(self, node: Node | None) -> Found | None:
        """Return the token that followed the node's text earlier; None if that is none or EOS."""
        found = self._text.token_after(self._match(node))
        if found is None or found[0] in self._eos_token_ids:
            return None
        token_id, num_matched = found
        return Found(token_id, confidence_after(num_matched))

    def _match(self, node: Node | None) -> Match:
        if node is None:
            return self._matches[-1]
        match = self._matches.get(id(node))
        if match is None:
            above = self._match(node.parent)
            match = self._matches[id(node)] = self._text.automaton.step(above, node.token_id)
        return match


def joined(column: Column, found: Found, weight: float) -> Column:
    """Return a column with the found token among its candidates."""
    if not column.token_ids:
        return make_column([found.token_id], [found.confidence], weight)
    if found.token_id in column.token_ids:
        return column
    others = math.log(max(-math.expm1(column.log_mass), math.exp(_LEAST_OTHERS)))
    logprobs = [*column.logprobs, others + _OTHER_SHARE]
    return make_column([*column.token_ids, found.token_id], logprobs, weight)


def raised(
    confidences: list[float], joined_column: Column, column: Column, found: Found
) -> list[float]:
    """Return the confidences of a joined column's candidates, including evidence from earlier text.

    `confidences` are those by lattice and proxy. `column` is the lattice's own. The found token
    gets the product of both sides' odds, each raised to a measured power; the others share the rest
    in proportion. Nothing changes if the lattice has no column, or if a guide has dropped the
    token.
    """
    if not column.token_ids or found.token_id not in joined_column.token_ids:
        return confidences
    place = joined_column.token_ids.index(found.token_id)
    before = min(max(math.exp(confidences[place]), _LEAST), 1 - _LEAST)
    bias, ours, theirs = _CANDIDATE if found.token_id in column.token_ids else _NO_CANDIDATE
    log_odds = bias + ours * _logit(before) + theirs * _logit(math.exp(found.confidence))
    after = 1 / (1 + math.exp(-log_odds))
    shift = math.log1p(-after) - math.log1p(-before)
    changed = [min(confidence + shift, 0.0) for confidence in confidences]
    changed[place] = math.log(after)
    return changed


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
