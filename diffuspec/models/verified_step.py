"""VerifiedStep: the results of a verification, for its requests and for observers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from diffuspec.algorithm.acceptance import Acceptance
from diffuspec.algorithm.sampling import likeliest_ids
from diffuspec.core.interfaces import Observation, Observer
from diffuspec.core.states import StateRows, StatesWanted
from diffuspec.core.types import Verdict
from diffuspec.models.hidden_states import HiddenStates, state_rows
from diffuspec.models.verify_plan import VerifyPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedStep:
    """What the target computed for the plans' rows, plan by plan."""

    plans: Sequence[VerifyPlan]
    token_ids: Sequence[int]  # the target's token at every root and node, [R]
    acceptances: Sequence[Acceptance]  # one for each plan
    logits: torch.Tensor  # logits of every root and node, [R, V] float32
    hidden_states: HiddenStates | None  # hidden states of all rows; None: nobody wants any

    def verdicts(self, started: float) -> dict[str, Verdict]:
        """Return the verdicts by request id. `started`: when the step began, in monotonic time."""
        logprobs = [
            plan.logprobs(acceptance, self.logits)
            for plan, acceptance in zip(self.plans, self.acceptances, strict=True)
        ]
        states = self._wanted_states()
        seconds = time.monotonic() - started
        return {
            plan.asked.request_id: plan.verdict(acceptance, found, seconds, rows)
            for plan, acceptance, found, rows in zip(
                self.plans, self.acceptances, logprobs, states, strict=True
            )
        }

    def show_to(self, observers: Sequence[Observer]) -> None:
        """Show the step to observers. Their errors are logged and do not fail it."""
        for observer in observers:
            try:
                observer.observe(self._observations(observer))
            except Exception:
                logger.exception("an observer of the target failed")

    def _observations(self, observer: Observer) -> list[Observation]:
        """Return what an observer wants to see of each plan."""
        top = likeliest_ids(self.logits, observer.num_top)
        states = self._hidden_rows(observer.hidden_layers)
        return [
            Observation(
                plan.request.prefix,
                plan.request.tree,
                self.token_ids[plan.logit_rows],
                acceptance.accepted_nodes,
                top[plan.logit_rows],
                plan.num_cached,
                rows,
                plan.asked.sampling.cache_salt,
            )
            for plan, acceptance, rows in zip(self.plans, self.acceptances, states, strict=True)
        ]

    def _hidden_rows(self, layers: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        """Return each plan's hidden states, [rows from num_cached on, H] for each layer."""
        if self.hidden_states is None or not layers:
            return [()] * len(self.plans)
        sizes = [plan.num_rows for plan in self.plans]
        by_layer = []
        for layer in layers:
            parts = torch.split(self.hidden_states.rows(layer), sizes)
            fed = [plan.hidden_states.rows(layer) for plan in self.plans if plan.hidden_states]
            pairs = zip(fed, parts, strict=True)
            by_layer.append([torch.cat(pair) if len(pair[0]) else pair[1] for pair in pairs])
        return list(zip(*by_layer, strict=True))

    def _wanted_states(self) -> list[StateRows | None]:
        """Return the hidden states that each request wants, as many as fit into its share."""
        wanted = [plan.request.states_wanted for plan in self.plans]
        max_bytes = StateRows.MAX_BYTES // max(1, len(wanted) - wanted.count(None))
        return [
            self._states_of(place, one, max_bytes) if one and one.layers else None
            for place, one in enumerate(wanted)
        ]

    def _states_of(self, place: int, wanted: StatesWanted, max_bytes: int) -> StateRows:
        """Return a plan's hidden states up to the last accepted token."""
        plan = self.plans[place]
        num_known = len(plan.request.prefix) - plan.num_cached
        rows = [*range(wanted.first - plan.num_cached, num_known)]
        rows += [num_known + node for node in self.acceptances[place].accepted_nodes]
        by_layer = self._hidden_rows(wanted.layers)[place]
        return state_rows(wanted.first, [layer[rows] for layer in by_layer], max_bytes)
