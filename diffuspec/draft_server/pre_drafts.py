"""Pre-drafts: what to draft for one engine while it verifies, before its verdicts are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from diffuspec.core.types import EMPTY_DRAFT
from diffuspec.draft_server.dispatcher import Dispatcher, DraftJob, PreDraftBatch
from diffuspec.draft_server.planner import Planner, Sent
from diffuspec.draft_server.request import EngineRequest
from diffuspec.draft_server.tenants import Tenant
from diffuspec.speculation.lengths import Ahead

_MAX_AHEAD = 64  # pre-drafts in one call


class _Outcome(NamedTuple):
    """A possible outcome of the running verification."""

    probability: float
    request: EngineRequest
    tokens: tuple[int, ...]  # tokens that it commits
    length: int  # length of the draft after them


class PreDrafts:
    """Offers drafts for the likeliest outcomes of an engine's running verification."""

    def __init__(
        self,
        planner: Planner,
        dispatcher: Dispatcher,
        tenant: Tenant,
        on_made: Callable[[], None],
    ) -> None:
        """`on_made` is called after each call of the drafter for this engine."""
        self._planner, self._dispatcher, self._tenant = planner, dispatcher, tenant
        self._on_made = on_made
        self._sent: Sent | None = None
        self._sent_at = 0.0
        self._requests: Sequence[EngineRequest] = ()

    def begin(self, sent: Sent, requests: Sequence[EngineRequest]) -> None:
        """Offer drafts for these requests from now on, while the engine verifies what was sent."""
        self._sent, self._sent_at, self._requests = sent, time.monotonic(), requests

    def end(self) -> None:
        """Offer nothing until the next verification."""
        self._sent, self._requests = None, ()

    def is_drafting(self) -> bool:
        """Return whether drafts for the coming steps are being made, or are worth making."""
        if not self._requests:
            return False
        if self._planner.is_fixed or self._dispatcher.is_drafting_for(self._requests):
            return True
        return bool(self._worth_drafting(time.monotonic()))

    # ---- see PreDraftSource

    @property
    def weight(self) -> float:
        return self._tenant.weight

    def charge(self, seconds: float) -> None:
        self._tenant.charge(seconds)

    def next_batch(self, now: float) -> PreDraftBatch | None:
        chosen = self._worth_drafting(now)
        if not chosen:
            return None
        costs = self._planner.draft_costs
        saved = sum([outcome.probability * costs.seconds(outcome.length, 1) for outcome in chosen])
        spent = costs.seconds(sum([outcome.length + 1 for outcome in chosen]), len(chosen))
        jobs = [
            DraftJob.after(outcome.request, outcome.tokens, outcome.length) for outcome in chosen
        ]
        jobs[-1].done.add_done_callback(lambda _: self._on_made())
        return PreDraftBatch(jobs, saved / max(spent, 1e-9))

    def _worth_drafting(self, now: float) -> list[_Outcome]:
        """Return the outcomes that are worth a draft."""
        sent = self._sent
        if sent is None or not self._requests:
            return []
        seconds = self._planner.costs.verify_seconds(sent.num_rows, sent.num_requests)
        left = max(self._sent_at + seconds - now, 0.0)
        possible: list[_Outcome] = []
        for request in self._requests:
            possible += [_outcome(chance, request, then) for chance, then in request.outcomes()]
            if request.sent is EMPTY_DRAFT:  # the present prefix has no known continuations
                possible.append(_outcome(request.prospects.at(1), request, ()))
        possible = [outcome for outcome in possible if self._can_draft(outcome)]
        possible = sorted(possible, key=lambda outcome: outcome.probability, reverse=True)[
            :_MAX_AHEAD
        ]
        ahead = [Ahead(outcome.probability, outcome.length) for outcome in possible]
        return possible[: self._planner.num_ahead(ahead, left, sent.num_requests)]

    def _can_draft(self, outcome: _Outcome) -> bool:
        is_drafting = self._dispatcher.is_drafting_after(outcome.request, outcome.tokens)
        return outcome.length > 0 and not is_drafting


def _outcome(chance: float, request: EngineRequest, tokens: tuple[int, ...]) -> _Outcome:
    length = min(request.length, request.room_after(len(tokens)))
    return _Outcome(chance, request, tokens, length)
