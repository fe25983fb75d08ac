"""The acceptance model: what the target will accept of a draft, and so what drafts are worth.

It learns from the drafts' confidences, calibrated by earlier verdicts. Each request has a model of
its own, whose prior is the one that all requests share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from diffuspec.algorithm.calibration import AcceptanceModel
from diffuspec.algorithm.draft_tree import depths, is_chain
from diffuspec.core.types import Draft, DraftTree, TokenIds, Verdict
from diffuspec.speculation.outcomes import OutcomeModel, OutcomeRanking, RankedOutcome

_LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
# Prices of a drafted position, in tokens: from one that only nearly certain tokens are worth, down
# to 0, at which drafts are as long as possible.
PRICES = (0.9, 0.75, 0.6, 0.45, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.015, 0.0)
_SMOOTHING = 0.4  # weight of a draft in its request's averages: easy stretches last a few steps
# weight of a draft in its request's long-term averages, and of these in a step without a draft
_USUAL_SMOOTHING = _SMOOTHING / 4
# weight of a draft in the averages of all requests: answers have about a dozen steps
_SHARED_SMOOTHING = _SMOOTHING / 10
_PRIOR_DRAFTS = 4  # weight of the prior in the averages of all requests, in drafts


class Kept(NamedTuple):
    """Averages over drafts of the part that is verified, and of the whole."""

    nodes: float = 8.0  # verified nodes
    tokens: float = 4.0  # expected accepted tokens of the verified nodes
    whole: float = 4.0  # expected accepted tokens of all nodes

    def moved(self, nodes: float, tokens: float, whole: float, rate: float) -> Kept:
        new = Kept(nodes, max(tokens, 1e-3), max(whole, 1e-3))
        return Kept(*_moved(self, new, rate))


class Choices(NamedTuple):
    """The draft length that is worth each price of a position, the highest price first."""

    lengths: Sequence[int]
    tokens: Sequence[float]  # accepted tokens of each, in the part that is verified
    rows: Sequence[float]  # verified nodes of each


@dataclass(frozen=True)
class Prospects:
    """What a request's next draft is expected to bring."""

    lengths: tuple[int, ...]
    tokens: Sequence[float]  # accepted tokens of a draft of each length that is verified whole
    kept: Kept
    # How likely drafts have changed since the latest one; 1: nothing is known of them. It rises
    # with the steps without a draft.
    chance_of_change: float

    @cached_property
    def choices(self) -> Choices:
        """How far to draft at each price, without a limit on the length."""
        return _choices(self.lengths, self.tokens, self.kept)

    def at(self, length: int) -> float:
        """Expected accepted tokens of a draft of this length that is verified whole."""
        lengths, tokens = self.lengths, self.tokens
        if length >= lengths[-1]:
            return tokens[-1]
        place = bisect_left(lengths, length)
        low, before = (lengths[place - 1], tokens[place - 1]) if place else (0, 0.0)
        return before + (tokens[place] - before) * (length - low) / (lengths[place] - low)

    def verified_at(self, length: int) -> tuple[float, float]:
        """Expected accepted tokens and nodes of the verified part of a draft of this length."""
        share = self.at(length) / self.kept.whole
        return share * self.kept.tokens, share * self.kept.nodes

    def choices_within(self, room: int) -> Choices:
        """Return how far to draft at each price, for at most `room` tokens."""
        choices = lengths, tokens, rows = self.choices
        if lengths[-1] <= room:
            return choices
        most, nodes = self.verified_at(room)
        return Choices(
            [min(length, room) for length in lengths],
            [min(number, most) for number in tokens],
            [min(number, nodes) for number in rows],
        )


class SharedAcceptance:
    """The acceptance of one drafter's drafts, over all requests so far."""

    def __init__(self, max_draft_tokens: int) -> None:
        self.nodes = AcceptanceModel()
        self.outcomes = OutcomeModel()
        self.lengths = (*[k for k in _LENGTHS if k < max_draft_tokens], max_draft_tokens)
        # Accepted tokens of a draft of each length. The prior is on the high side, since a few
        # drafts correct it, while drafts that are never made correct nothing.
        self.tokens = [sum(0.85**depth for depth in range(1, k + 1)) for k in self.lengths]
        self.kept = Kept()
        self._num_learnt = 0

    def observe(self, tokens: Sequence[float]) -> None:
        """Learn how many tokens of a draft of each length are expected to be accepted."""
        self._num_learnt += 1
        rate = max(_SHARED_SMOOTHING, 1 / (self._num_learnt + _PRIOR_DRAFTS))
        self.tokens = _moved(self.tokens, tokens, rate)


class Acceptance:
    """The acceptance of one drafter's drafts for one request."""

    def __init__(self, shared: SharedAcceptance) -> None:
        self._shared = shared
        self._nodes = AcceptanceModel(shared.nodes)
        self._ranking = OutcomeRanking(shared.outcomes)
        self._tokens: Sequence[float] = shared.tokens  # recent value of a draft of each length
        self._mean: Sequence[float] = ()  # their long-term average
        self._num_drafts = 0
        self._kept = shared.kept
        self._chance_of_change = 1.0
        self._prospects: Prospects | None = None  # a cache; None: stale

    @property
    def prospects(self) -> Prospects:
        """What the next draft is expected to bring."""
        if self._prospects is None:
            self._prospects = Prospects(
                self._shared.lengths, self._tokens, self._kept, self._chance_of_change
            )
        return self._prospects

    def reach(self, draft: Draft) -> list[float]:
        """Return the probability that each node is accepted with all of its ancestors."""
        return self._nodes.reach(draft)

    def rank(self, draft: Draft, prefix: TokenIds) -> list[RankedOutcome]:
        """Return the likeliest outcomes of a draft's verification, best first."""
        return self._ranking.rank(draft, self.reach(draft), prefix)

    def observe_draft(self, draft: Draft, length: int) -> list[float]:
        """Learn from a received draft of `length` tokens; return the reach of its nodes."""
        reach = self.reach(draft)
        lengths = self._shared.lengths
        most = lengths[-1]
        seen, end = _by_depth(draft.tree, reach, most), min(length, most)
        if draft.num_tokens_before_eos >= end > 0 and seen[end] > 0:  # extrapolate its end
            ratio = min(seen[end] ** (1 / end), 0.99)
            seen[end:] = accumulate(repeat(ratio, most - end), mul, initial=seen[end])
        accepted = [*accumulate(seen)]
        tokens = [accepted[k] for k in lengths]
        self._shared.observe(tokens)
        self._num_drafts += 1
        if self._num_drafts == 1:
            self._mean = tokens
        else:
            rate = max(_USUAL_SMOOTHING, 1 / self._num_drafts)
            self._mean = _moved(self._mean, tokens, rate)
        self._tokens = _moved(self._tokens, tokens, _SMOOTHING)
        self._chance_of_change, self._prospects = 0.0, None
        return reach

    def observe_no_draft(self) -> None:
        """Record a step without a draft, which makes earlier observations less relevant.

        After many, a draft is expected to be worth the mean of the request's drafts and of one
        average draft of all requests.
        """
        self._chance_of_change += _USUAL_SMOOTHING * (1 - self._chance_of_change)
        if self._num_drafts:
            usual = _moved(self._mean, self._shared.tokens, 1 / (1 + self._num_drafts))
            self._tokens = _moved(self._tokens, usual, _USUAL_SMOOTHING)
        else:
            self._tokens, self._kept = self._shared.tokens, self._shared.kept
        self._prospects = None

    def observe_verdict(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on a draft, as far as it was verified."""
        self._nodes.observe(draft, verdict)
        self._ranking.observe(verdict)

    def observe_cut(self, num_nodes: int, tokens: float, whole: float) -> None:
        """Learn how many nodes of a draft are verified, and what is expected to be accepted.

        tokens: expected accepted tokens of these nodes; whole: of all nodes of the draft. Drafts of
        which nothing is verified say nothing of the others.
        """
        if num_nodes:
            self._prospects = None
            shared = self._shared
            self._kept = self._kept.moved(num_nodes, tokens, whole, _SMOOTHING)
            shared.kept = shared.kept.moved(num_nodes, tokens, whole, _SHARED_SMOOTHING)


def _choices(lengths: Sequence[int], tokens: Sequence[float], kept: Kept) -> Choices:
    before, last = 0.0, 0
    chosen, accepted, prices = [], [], iter(PRICES)
    price = next(prices)
    for length, number in zip(lengths, tokens, strict=True):
        chance = (number - before) / (length - last)
        while chance <= price and price:
            chosen.append(last)
            accepted.append(before)
            price = next(prices)
        before, last = number, length
    num_left = len(PRICES) - len(chosen)
    chosen, accepted = chosen + num_left * [last], accepted + num_left * [before]
    share, rows = kept.tokens / kept.whole, kept.nodes / kept.whole
    return Choices(
        chosen, [share * number for number in accepted], [rows * number for number in accepted]
    )


def _by_depth(tree: DraftTree, reach: Sequence[float], max_depth: int) -> list[float]:
    """Return the expected accepted tokens at each depth, from 0 to at least `max_depth`."""
    rest = [0.0] * (max_depth - len(reach))
    if is_chain(tree):
        return [0.0, *reach, *rest]
    seen = [0.0] * (1 + len(reach)) + rest
    for depth, probability in zip(depths(tree), reach, strict=True):
        seen[depth] += probability
    return seen


def _moved(means: Sequence[float], values: Sequence[float], rate: float) -> list[float]:
    return [mean + rate * (value - mean) for mean, value in zip(means, values, strict=True)]
