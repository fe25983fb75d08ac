"""The acceptance model: how many tokens of a draft the target will accept, and what to cut.

It learns from the drafts' confidences, calibrated by earlier verdicts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from diffuspec.adl.cost_curve import CostCurve
from diffuspec.algorithm.calibration import AcceptanceModel
from diffuspec.algorithm.draft_tree import depths, is_chain
from diffuspec.core.types import Draft, DraftTree, Verdict

_LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
# Prices of a drafted position, in tokens: from one that only nearly certain tokens are worth, down
# to 0, at which drafts are as long as possible.
PRICES = (0.9, 0.75, 0.6, 0.45, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.015, 0.0)
_RISING = [-price for price in PRICES]
_SMOOTHING = 0.4  # weight of a draft in its request's averages: easy stretches last a few steps
# weight of a draft in its request's long-term averages, and of these in a step without a draft
_USUAL_SMOOTHING = 0.1
# weight of a draft in the averages of all requests: answers have about a dozen steps
_SHARED_SMOOTHING = 0.04
_LEAST_SQUARES = 1e-6  # least variance to divide by: drafts may all be alike
_PRIOR_DRAFTS = 4  # weight of the prior in the averages of all requests, in drafts


class SharedExpectation:
    """The value of drafts of one drafter, over all requests so far."""

    def __init__(self, max_draft_tokens: int) -> None:
        self.acceptance = AcceptanceModel()
        self.lengths = [k for k in _LENGTHS if k < max_draft_tokens] + [max_draft_tokens]
        # Accepted tokens of a draft of each length. The prior is on the high side, since a few
        # drafts correct it, while drafts that are never made correct nothing.
        self.tokens = [sum(0.85**depth for depth in range(1, k + 1)) for k in self.lengths]
        self.verified = _Verified()
        self._num_learnt = 0
        # Sums of squares and products of the excess of requests' first and later drafts over the
        # average: how much of the excess lasts. The prior is one half.
        self._squares = _PRIOR_DRAFTS * (self.tokens[-1] / 2) ** 2
        self._products = self._squares / 2

    def observe_later(self, first: float, tokens: float) -> None:
        """Learn from a request's first and a later draft how much they have in common."""
        one, other = first - self.tokens[-1], tokens - self.tokens[-1]
        rate = 1 - _SHARED_SMOOTHING / 4
        self._squares = rate * self._squares + (one * one + other * other) / 2
        self._products = rate * self._products + one * other

    def credibility(self, num_drafts: int) -> float:
        """Weight of the average over a request's drafts, relative to that of all requests.

        This is Bühlmann's credibility: drafts of one request share `kept` of their variance.
        """
        kept = min(max(self._products / max(self._squares, _LEAST_SQUARES), 0.02), 0.98)
        return num_drafts * kept / (1 + (num_drafts - 1) * kept)

    def observe(self, tokens: Sequence[float]) -> None:
        """Learn how many tokens of a draft of each length are expected to be accepted."""
        self._num_learnt += 1
        rate = max(_SHARED_SMOOTHING, 1 / (self._num_learnt + _PRIOR_DRAFTS))
        self.tokens = _moved(self.tokens, tokens, rate)


@dataclass(slots=True)
class _Verified:
    """Averages over drafts of the part that is verified, and of the whole."""

    nodes: float = 8.0  # verified nodes
    tokens: float = 4.0  # expected accepted tokens of the verified nodes
    whole: float = 4.0  # expected accepted tokens of all nodes

    def add(self, nodes: float, tokens: float, whole: float, rate: float) -> None:
        self.nodes += rate * (nodes - self.nodes)
        self.tokens += rate * (max(tokens, 1e-3) - self.tokens)
        self.whole += rate * (max(whole, 1e-3) - self.whole)


class Offers(NamedTuple):
    """Draft lengths that are worth the price of a position, the highest price first."""

    lengths: list[int]
    tokens: list[float]  # accepted tokens of each, in the part that is verified
    rows: list[float]  # verified nodes of each


class Expectation:
    """The value of drafts of one drafter for one request."""

    def __init__(self, shared: SharedExpectation) -> None:
        self._shared = shared
        self._acceptance = AcceptanceModel(shared.acceptance)
        self.lengths = shared.lengths
        self.tokens: Sequence[float] = shared.tokens  # recent value of a draft of each length
        self._first = 0.0  # expected accepted tokens of its first draft
        self._mean: Sequence[float] = ()  # their long-term average
        self._num_drafts = 0
        self.verified = replace(shared.verified)
        # How likely its drafts have changed since the latest one; 1: nothing is known of them. It
        # rises with the steps without a draft.
        self.chance_of_change = 1.0
        self._offers: Offers | None = None  # a cache; None: stale

    def reach(self, draft: Draft) -> list[float]:
        """Return the probability that each node is accepted with all of its ancestors."""
        return self._acceptance.reach(draft)

    def observe_draft(self, draft: Draft, length: int) -> list[float]:
        """Learn from a received draft of `length` tokens; return the reach of its nodes."""
        reach = self.reach(draft)
        most = self.lengths[-1]
        seen, end = _by_depth(draft.tree, reach, most), min(length, most)
        if draft.num_tokens_before_eos >= end > 0 and seen[end] > 0:  # extrapolate its end
            ratio = min(seen[end] ** (1 / end), 0.99)
            seen[end:] = accumulate(repeat(ratio, most - end), mul, initial=seen[end])
        accepted = [*accumulate(seen)]
        found = [accepted[k] for k in self.lengths]
        self._shared.observe(found)
        self._num_drafts += 1
        if self._num_drafts == 1:
            self._first, self._mean = found[-1], found
        else:
            self._shared.observe_later(self._first, found[-1])
            rate = max(_USUAL_SMOOTHING, 1 / self._num_drafts)
            self._mean = _moved(self._mean, found, rate)
        self.tokens = _moved(self.tokens, found, _SMOOTHING)
        self.chance_of_change, self._offers = 0.0, None
        return reach

    def observe_no_draft(self) -> None:
        """Record a step without a draft, which makes earlier observations less relevant.

        After many, a draft is expected to be worth a weighted mean of the request's drafts and
        those of all requests.
        """
        self.chance_of_change += _USUAL_SMOOTHING * (1 - self.chance_of_change)
        if self._num_drafts:
            weight = self._shared.credibility(self._num_drafts)
            usual = _moved(self._shared.tokens, self._mean, weight)
            self.tokens = _moved(self.tokens, usual, _USUAL_SMOOTHING)
        else:
            self.tokens = self._shared.tokens
            self.verified = replace(self._shared.verified)
        self._offers = None

    def observe_verdict(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on a draft, as far as it was verified."""
        self._acceptance.observe(draft, verdict)

    def observe_cut(self, num_nodes: int, tokens: float, whole: float) -> None:
        """Learn how many nodes of a draft are verified, and what is expected to be accepted.

        tokens: expected accepted tokens of these nodes; whole: of all nodes of the draft. Drafts of
        which nothing is verified say nothing of the others.
        """
        if num_nodes:
            self._offers = None
            self.verified.add(num_nodes, tokens, whole, _SMOOTHING)
            self._shared.verified.add(num_nodes, tokens, whole, _SHARED_SMOOTHING)

    def verified_at(self, length: int) -> tuple[float, float]:
        """Expected accepted tokens and nodes of the verified part of a draft of this length."""
        share, verified = self.at(length) / self.verified.whole, self.verified
        return share * verified.tokens, share * verified.nodes

    def offers(self, room: int) -> Offers:
        """Return how far to draft at each price, for at most `room` tokens."""
        if self._offers is None:
            self._offers = self._make_offers()
        found = self._offers
        if found.lengths[-1] > room:
            most, nodes = self.verified_at(room)
            lengths = [min(length, room) for length in found.lengths]
            tokens = [min(one, most) for one in found.tokens]
            found = Offers(lengths, tokens, [min(one, nodes) for one in found.rows])
        return found

    def _make_offers(self) -> Offers:
        before, last = 0.0, 0
        lengths, accepted, prices = [], [], iter(PRICES)
        price = next(prices)
        for length, tokens in zip(self.lengths, self.tokens, strict=True):
            chance = (tokens - before) / (length - last)
            while chance <= price and price:
                lengths.append(last)
                accepted.append(before)
                price = next(prices)
            before, last = tokens, length
        num_left = len(PRICES) - len(lengths)
        lengths, accepted = lengths + num_left * [last], accepted + num_left * [before]
        verified = self.verified
        share, rows = verified.tokens / verified.whole, verified.nodes / verified.whole
        return Offers(lengths, [share * one for one in accepted], [rows * one for one in accepted])

    def at(self, length: int) -> float:
        """Expected accepted tokens of a draft of this length that is verified whole."""
        lengths, tokens = self.lengths, self.tokens
        if length >= lengths[-1]:
            return tokens[-1]
        place = bisect_left(lengths, length)
        low, before = (lengths[place - 1], tokens[place - 1]) if place else (0, 0.0)
        return before + (tokens[place] - before) * (length - low) / (lengths[place] - low)


def place_of(price: float) -> int:
    """Return the index of the highest of the PRICES that is not above this one."""
    return min(bisect_left(_RISING, -price), len(PRICES) - 1)


def best_num_nodes(reach: Sequence[float], seconds: Sequence[float], rate: float) -> int:
    """Return how many nodes to verify, likeliest first. `reach` is in descending order.

    This maximises tokens minus `rate` times the seconds of the verification, which are `seconds[n]`
    for n nodes.
    """
    gains = accumulate(reach, initial=0.0)
    scores = [gain - rate * one for gain, one in zip(gains, seconds, strict=False)]
    return scores.index(max(scores))


def nodes_to_verify(
    reaches: Sequence[Sequence[float]], num_others: int, verification: CostCurve, rate: float
) -> list[int]:
    """Return for each of several drafts how many of its likeliest nodes to verify.

    reaches: the reach of their nodes. All are verified in one pass with `num_others` other rows.
    """
    reach = sorted([value for one in reaches for value in one], reverse=True)
    sizes = range(num_others, num_others + len(reach) + 1)
    number = best_num_nodes(reach, verification.at_each(sizes), rate)
    if len(reaches) == 1:
        return [number]
    least = reach[number - 1] if number else math.inf
    return [sum([value >= least for value in one]) for one in reaches]


def _by_depth(tree: DraftTree, reach: Sequence[float], max_depth: int) -> list[float]:
    """Return the expected accepted tokens at each depth, from 0 to at least `max_depth`."""
    rest = [0.0] * (max_depth - len(reach))
    if is_chain(tree):
        return [0.0, *reach, *rest]
    found = [0.0] * (1 + len(reach)) + rest
    for depth, probability in zip(depths(tree), reach, strict=True):
        found[depth] += probability
    return found


def _moved(means: Sequence[float], values: Sequence[float], rate: float) -> list[float]:
    return [mean + rate * (value - mean) for mean, value in zip(means, values, strict=True)]
