"""A request whose drafter is chosen for it, step by step."""

from __future__ import annotations

from collections.abc import Mapping

from diffuspec.control.draft_length import DraftLength
from diffuspec.control.drafter_choice import DrafterChoice, DrafterRates
from diffuspec.coordinator.draft_lane import DraftLane
from diffuspec.coordinator.request import Request
from diffuspec.core.types import StepStats


class AutoDrafter:
    """Changes the drafter of one request between steps. `lengths` are by the drafters' names."""

    def __init__(self, lengths: Mapping[str, DraftLength], rates: DrafterRates) -> None:
        self._lengths = lengths
        self._choice = DrafterChoice(rates)
        # The request's lane and is_known_to_drafter with each drafter used before, by its name.
        self._left: dict[str, tuple[DraftLane | None, bool]] = {}
        self._knows_request = False  # is_known_to_drafter when this step began

    def begin_step(self, request: Request) -> None:
        """Choose the drafter of the coming step, unless its draft is there or on its way."""
        pre_drafts = request.pre_drafts
        if request.early is None and (pre_drafts is None or pre_drafts.hit is None):
            name = self._choice.choose()
            if name != request.drafter:
                self._left[request.drafter] = request.lane, request.is_known_to_drafter
                request.drafter, request.draft_length = name, self._lengths[name]
                request.lane, request.is_known_to_drafter = self._left.get(name, (None, False))
        self._knows_request = request.is_known_to_drafter

    def observe(self, request: Request, step: StepStats) -> None:
        """Learn from a step that has ended.

        A step with a drafter's first draft for the request is left out: that one read the prompt.
        """
        if self._knows_request or not step.num_tree_nodes:
            self._choice.observe(request.drafter, step.num_committed_tokens, step.step_seconds)
