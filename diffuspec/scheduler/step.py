"""The present work on a request: its progress, its step, and the pre-drafts of the step.

Pre-drafts are made for outcomes of a running verification, before its verdict is known. If the
verdict is one of those outcomes (a hit), the next draft is ready or on its way; a miss is drafted
just in time. Neither changes a token of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diffuspec.algorithm.draft_tree import is_chain, prune_draft
from diffuspec.core.types import EMPTY_DRAFT, Draft, PreDraftResult
from diffuspec.speculation.outcomes import Outcome
from diffuspec.speculation.values import DraftTicket, PossibleOutcome

State: TypeAlias = Literal["waiting", "drafting", "verifying", "finished"]


class Progress:
    """The state of a request, and the seconds spent in each state."""

    def __init__(self) -> None:
        self.state: State = "waiting"
        self.waits_for = "a slot"
        self.since = time.monotonic()  # start of the state
        self._seconds: dict[str, float] = {}  # time in earlier states

    def enter(self, state: State, waits_for: str) -> None:
        """Enter a state, with what the request waits for; once finished it stays so."""
        if self.state == "finished":
            return
        if state != self.state:
            now, spent = time.monotonic(), self._seconds
            spent[self.state] = spent.get(self.state, 0.0) + now - self.since
            self.state, self.since = state, now
        self.waits_for = waits_for

    def __str__(self) -> str:
        return ", ".join(f"{state} {s:.3f} s" for state, s in self._seconds.items())


@dataclass(slots=True)
class Step:
    """The next step of a request. Points in time are of time.monotonic()."""

    started_at: float = 0.0  # time of the previous verdict, or of the admission
    verify_busy_seconds: float = 0.0  # the verifier's total at the start
    draft_busy_seconds: float = 0.0  # the drafters' totals at the start
    ready_at: float = 0.0  # arrival of the draft, or decision to go without one
    drafting_seconds: float = 0.0  # wait for the drafter, including transport
    prefill_seconds: float = 0.0  # the verifier's time for prompt chunks before the step
    prefill_transport_seconds: float = 0.0  # transport of these chunks, in both directions
    draft: Draft = EMPTY_DRAFT
    ticket: DraftTicket | None = None  # the request for `draft`; None: there is no draft
    reach: Sequence[float] = ()  # reach of the draft's nodes
    is_settled: bool = False  # the draft has arrived, or the step goes without one
    fallback: str | None = None  # why the step has no draft although there should have been one

    @property
    def num_draft_tokens(self) -> int:
        """Requested length of the draft; 0: none."""
        return 0 if self.ticket is None else self.ticket.length

    def skip(self, reason: str | None) -> None:
        """Go without a draft. `reason`: see StepStats.fallback."""
        self.draft, self.ticket, self.reach = EMPTY_DRAFT, None, ()
        self.is_settled, self.fallback = True, reason

    def cut(self, num_nodes: int) -> None:
        """Keep only the likeliest nodes of the draft, if it has more."""
        reach = self.reach
        if num_nodes < len(reach):
            # Parents come first: no node is likelier to be reached than its parent.
            nodes: Sequence[int] = range(len(reach))
            if not is_chain(self.draft.tree):
                nodes = sorted(nodes, key=reach.__getitem__, reverse=True)
            order = nodes[:num_nodes]
            self.draft = prune_draft(self.draft, order) if order else EMPTY_DRAFT
            self.reach = [reach[node] for node in order]


@dataclass(slots=True, eq=False)
class PreDraft:
    """A draft for one outcome; on its way as long as `draft` is None."""

    ticket: DraftTicket
    draft: Draft | None = None


@dataclass(slots=True, eq=False)
class PreDrafts:
    """The pre-drafts of one verification of one request."""

    untried: Sequence[PossibleOutcome]  # outcomes not sent yet, likeliest first
    num_sent: int = 0
    num_tokens: int = 0  # requested length
    # pre-drafts that were not lost
    by_outcome: dict[Outcome, PreDraft] = field(default_factory=dict)
    happened: Outcome | None = None  # None: no verdict yet

    @property
    def hit(self) -> PreDraft | None:
        """The pre-draft for the outcome that happened; it may still be on its way."""
        return None if self.happened is None else self.by_outcome.get(self.happened)

    @property
    def result(self) -> PreDraftResult | None:
        """None: nothing was pre-drafted."""
        if not self.num_sent:
            return None
        return "miss" if self.hit is None else "hit"

    @property
    def num_wasted_tokens(self) -> int:
        """Tokens requested of the drafter for outcomes that did not happen."""
        return self.num_tokens - (0 if self.hit is None else self.hit.ticket.length)

    def send(self, ticket: DraftTicket) -> PreDraft:
        """Count a pre-draft as on its way; its draft must be stored, or `lose` must follow."""
        assert ticket.outcome is not None
        pre_draft = PreDraft(ticket)
        self.untried = [possible for possible in self.untried if possible.outcome != ticket.outcome]
        self.num_sent += 1
        self.num_tokens += ticket.length
        self.by_outcome[ticket.outcome] = pre_draft
        return pre_draft

    def lose(self, pre_draft: PreDraft) -> bool:
        """Forget a pre-draft that will not come; return whether its outcome has happened."""
        is_hit = self.hit is pre_draft
        if pre_draft.ticket.outcome is not None:
            self.by_outcome.pop(pre_draft.ticket.outcome, None)
        return is_hit
