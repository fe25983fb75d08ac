"""Drafts of one length, independent of cost and benefit, for repeatable measurements."""

from __future__ import annotations

from collections.abc import Sequence

from diffuspec.adl.cost_model import DraftCosts
from diffuspec.draft_server.planner import Planner
from diffuspec.draft_server.request import EngineRequest


class FixedLengths(Planner):
    """Drafts for every request in each step, while the engine waits, and never ahead."""

    is_patient = True

    def __init__(self, drafter: str, drafting: DraftCosts, num_draft_tokens: int) -> None:
        super().__init__(drafter, drafting)
        self._num_draft_tokens = num_draft_tokens

    def lengths(self, requests: Sequence[EngineRequest]) -> dict[EngineRequest, int]:
        """See Planner."""
        return {one: min(self._num_draft_tokens, one.room) for one in requests if one.room > 0}

    def lengths_now(
        self, requests: Sequence[EngineRequest], at_hand: Sequence[float], num_rows: int
    ) -> dict[EngineRequest, int]:
        """See Planner."""
        return {one: one.length for one in requests}

    def lengths_ahead(
        self,
        outcomes: Sequence[tuple[float, EngineRequest, int]],
        seconds_left: float,
        num_requests: int,
    ) -> list[int]:
        """See Planner."""
        return [0] * len(outcomes)

    def num_nodes(self, reaches: Sequence[Sequence[float]], num_requests: int) -> list[int]:
        """See Planner."""
        return [min(len(one), self._num_draft_tokens) for one in reaches]
