"""How often a drafted token is right, given what the drafter says of it and given its parent.

A diffusion LM's confidence is not a probability of acceptance: it knows nothing of the branch that
the token hangs on. These counts make it one.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from diffuspec.types import Draft, Verdict

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998)
_LOG_EDGES = [math.log(edge) for edge in _EDGES]
_CENTRES = [(a + b) / 2 for a, b in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True)]
_PRIOR_WEIGHT = 6.0
_MAX_WEIGHT = 400.0  # older counts fade once there are so many


class AcceptanceModel:
    """P(node right | parent right) by confidence, on top of a wider model that learns too."""

    def __init__(self, wider: AcceptanceModel | None = None) -> None:
        self._wider = wider
        self._seen = [0.0] * len(_CENTRES)
        self._right = [0.0] * len(_CENTRES)

    def reach(self, draft: Draft) -> list[float]:
        """Return for each node the probability that it is accepted, its ancestors included."""
        reached: list[float] = []
        for confidence, parent in zip(draft.confidences, draft.tree.parents, strict=True):
            above = reached[parent] if parent >= 0 else 1.0
            reached.append(above * self._probability(bisect_right(_LOG_EDGES, confidence)))
        return reached

    def observe(self, draft: Draft, verdict: Verdict, is_shared: bool = True) -> None:
        """Count every node whose parent was accepted, in the wider model too if it is shared."""
        accepted = {-1, *verdict.accepted_nodes}
        for node, parent in enumerate(draft.tree.parents):
            if parent in accepted:
                cell = bisect_right(_LOG_EDGES, draft.confidences[node])
                self._count(cell, node in accepted)
                if is_shared and self._wider is not None:
                    self._wider._count(cell, node in accepted)

    def _probability(self, cell: int) -> float:
        prior = _CENTRES[cell] if self._wider is None else self._wider._probability(cell)
        return (_PRIOR_WEIGHT * prior + self._right[cell]) / (_PRIOR_WEIGHT + self._seen[cell])

    def _count(self, cell: int, is_right: bool) -> None:
        if self._seen[cell] >= _MAX_WEIGHT:
            self._seen[cell] /= 2
            self._right[cell] /= 2
        self._seen[cell] += 1
        self._right[cell] += is_right
