"""The weight of the drafter against the causal proxy: lambda of Eq. 8, constant or adaptive.

The proxy helps in formulaic text and hurts in copied text, so the best weight differs by request.
The adaptive weight moves towards the side that was right where the two disagreed recently.
"""

from __future__ import annotations

from typing import Literal

from diffuspec.algorithm.draft_tree import best_path
from diffuspec.core.types import Draft, Verdict

_LOWEST, _HIGHEST = 0.25, 0.95
_START = 0.65
_RATE = 0.12


class DrafterWeight:
    """The weight of one request: constant, or moving towards the side that was right."""

    def __init__(self, given: float | Literal["adaptive"]) -> None:
        self._is_adaptive = given == "adaptive"
        self.value = _START if given == "adaptive" else given

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Compare both sides at every position of the best path that the target reached."""
        if not self._is_adaptive:
            return
        path = best_path(draft.tree)
        choices = zip(
            draft.drafter_choices, draft.proxy_choices, path, verdict.token_ids, strict=False
        )
        for of_drafter, of_proxy, node, right in choices:
            if of_drafter != of_proxy and right in (of_drafter, of_proxy):
                goal = _HIGHEST if right == of_drafter else _LOWEST
                self.value += _RATE * (goal - self.value)
            if draft.tree.token_ids[node] != right:
                return  # later choices followed a wrong token
