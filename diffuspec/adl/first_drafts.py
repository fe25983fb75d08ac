"""Detects a change of the traffic, from a first draft that is unlikely after the earlier ones."""

from __future__ import annotations

import math

_LEAST_TOKENS = 0.05  # per draft; lower numbers are not distinguished
_LEAST_SPREAD = 0.5  # standard deviation of the logarithms: similar requests differ by half
PRIOR_DRAFTS = 4  # weight of the prior, in drafts


class FirstDrafts:
    """How many tokens of requests' first drafts are expected to be accepted.

    Their logarithms are assumed to be normally distributed as long as the traffic stays the same;
    after a change, they are assumed to be uniformly distributed. Later drafts do not count: the
    drafts of one request are alike, and would make every other request look like a change.
    """

    def __init__(self, tokens: float, most: float, rate: float) -> None:
        """Start with a prior of `tokens`; `most` is the length of the longest draft.

        rate: weight of a new draft in the averages, and assumed frequency of changes.
        """
        self._most = most
        self._range = math.log(most / _LEAST_TOKENS)
        self._rate = rate
        self._mean = math.log(tokens)
        # As long as nothing is known, the variance is that of the uniform distribution.
        self._variance = self._unknown = self._range**2 / 12
        self._number = 0.0  # drafts since the traffic changed

    def observe(self, tokens: float) -> float:
        """Learn from a draft; return the probability that the traffic changed before it."""
        error = math.log(min(max(tokens, _LEAST_TOKENS), self._most)) - self._mean
        changed = self._chance_of_change(error)
        kept = 1 - changed
        rate = kept * max(self._rate, 1 / (self._number + 1 + PRIOR_DRAFTS))
        self._number = kept * self._number + 1
        self._mean += (changed + rate) * error
        self._variance += rate * (error**2 - self._variance)
        self._variance += changed * (self._unknown - self._variance)
        self._variance = max(self._variance, _LEAST_SPREAD**2)
        return changed

    def _chance_of_change(self, error: float) -> float:
        """Return the probability of a change, by Bayes' rule.

        error: the logarithm of the ratio of a draft's accepted tokens to the expected number.
        """
        before = math.exp(-(error**2) / (2 * self._variance))
        before *= (1 - self._rate) / math.sqrt(2 * math.pi * self._variance)
        after = self._rate / self._range
        return after / (after + before)
