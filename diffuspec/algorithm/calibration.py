"""Calibration: maps a drafter's confidences to measured probabilities of acceptance.

A drafter's confidence is not a probability of acceptance, because it does not depend on the branch
of the token. Counts of accepted tokens by confidence turn it into one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from diffuspec.algorithm.draft_tree import is_chain
from diffuspec.core.types import Draft, Verdict

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998)
_LOG_EDGES = [math.log(edge) for edge in _EDGES]
_CENTRES = [(a + b) / 2 for a, b in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True)]
_PRIOR_WEIGHT = 6.0  # in tokens, about one draft's, so that a request's own counts soon prevail
_MAX_WEIGHT = 400.0  # counts are halved when they reach this, so that old ones fade


class FadingCounts:
    """Numbers of guesses by cell, and of those that were right. Old guesses fade."""

    def __init__(self, priors: Sequence[float], weight: float = 0.0) -> None:
        """priors: P(right) in each cell, which counts like `weight` guesses."""
        self.seen = [weight] * len(priors)
        self.right = [weight * prior for prior in priors]

    def count(self, cell: int, is_right: bool) -> None:
        if self.seen[cell] >= _MAX_WEIGHT:
            self.seen[cell] /= 2
            self.right[cell] /= 2
        self.seen[cell] += 1
        self.right[cell] += is_right


class Calibration:
    """P(token accepted) as a function of the drafter's probability, counted in cells.

    The prior of a cell is its value in the wider calibration, which counts the same tokens and
    others; without one, the drafter's probability.
    """

    def __init__(self, wider: Calibration | None = None) -> None:
        self._wider = wider
        self._counts = FadingCounts(_CENTRES)
        self._priors: list[float] | None = None  # the priors behind _values; None: stale
        self._values: list[float] = []

    def probability(self, logprob: float) -> float:
        """Return P(token accepted) for a drafter's natural-log probability."""
        return self.in_cells()[bisect_right(_LOG_EDGES, logprob)]

    def count(self, logprob: float, is_right: bool) -> None:
        """Count a token, in the wider calibration too."""
        self._counts.count(bisect_right(_LOG_EDGES, logprob), is_right)
        self._priors = None
        if self._wider is not None:
            self._wider.count(logprob, is_right)

    def in_cells(self) -> list[float]:
        """Return P(token accepted) in every cell. The caller must not change the list."""
        priors = _CENTRES if self._wider is None else self._wider.in_cells()
        if priors is not self._priors:
            self._priors = priors
            self._values = [
                (_PRIOR_WEIGHT * prior + right) / (_PRIOR_WEIGHT + seen)
                for prior, right, seen in zip(
                    priors, self._counts.right, self._counts.seen, strict=True
                )
            ]
        return self._values


class AcceptanceModel:
    """P(node accepted | parent accepted) by confidence.

    The prior is that of the wider model, which learns from the same observations.
    """

    def __init__(self, wider: AcceptanceModel | None = None) -> None:
        self._nodes: Calibration = Calibration(None if wider is None else wider._nodes)

    def reach(self, draft: Draft) -> list[float]:
        """Return each node's probability of being accepted with all of its ancestors."""
        in_cells = self._nodes.in_cells()
        here = [in_cells[bisect_right(_LOG_EDGES, one)] for one in draft.confidences]
        if is_chain(draft.tree):
            return [*accumulate(here, mul)]
        reached = [1.0]  # entry 0 is the root, whose index is -1
        for probability, parent in zip(here, draft.tree.parents, strict=True):
            reached.append(reached[parent + 1] * probability)
        return reached[1:]

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Count the nodes whose parents were accepted, in the wider model too."""
        accepted = {-1, *verdict.accepted_nodes}
        for node, parent in enumerate(draft.tree.parents):
            if parent in accepted:
                self._nodes.count(draft.confidences[node], node in accepted)
