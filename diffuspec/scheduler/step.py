"""A step of a request: its draft, and the drafts that are made ahead of it.

Two kinds of drafts are made ahead. An early draft is asked for while the target reads the prompt.
Pre-drafts are made for outcomes of a verification under way, before its verdict is known. When the
verdict is one of those outcomes (a hit), the next draft is there already or on its way; a miss is
drafted just in time. Neither changes a token of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from diffuspec.algorithm.outcomes import Outcome, OutcomeRanking, RankedOutcome
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest, PreDraftResult, TokenIds


@dataclass(slots=True)
class Step:
    """The coming step of a request. Points in time are time.monotonic()."""

    started_at: float = 0.0  # the previous verdict, or the admission
    verify_busy_seconds: float = 0.0  # of the verifier, in total, when the step began
    draft_busy_seconds: float = 0.0  # of the drafters, in total, when the step began
    ready_at: float = 0.0  # the draft arrived, or the decision to go without one
    drafting_seconds: float = 0.0  # spent waiting for the drafter, transport included
    prefill_seconds: float = 0.0  # of the verifier, on prompt chunks ahead of the step
    prefill_transport_seconds: float = 0.0  # of these chunks, both ways
    draft: Draft = EMPTY_DRAFT
    num_draft_tokens: int = 0  # asked of the drafter
    reach: Sequence[float] = ()  # of the draft's nodes; empty: it is verified whole
    num_expected: float = 0.0  # tokens of the draft to be accepted; 0: not known
    is_settled: bool = False  # the draft is there, or the step goes without one
    is_trial: bool = False  # the draft is to tell whether drafts pay
    fallback: str | None = None  # why the step has no draft although one was due


@dataclass(slots=True)
class EarlyDraft:
    """A draft asked for while the target reads the prompt, without the first token."""

    num_tokens: int  # of the prefix that it was asked for
    length: int  # tokens asked of the drafter
    draft: Draft | None = None  # None: on its way


@dataclass(slots=True, eq=False)
class PreDraft:
    """A draft for one outcome; on its way as long as `draft` is None."""

    outcome: Outcome
    num_draft_tokens: int
    request: DraftRequest
    draft: Draft | None = None


@dataclass(slots=True, eq=False)
class PreDrafts:
    """The pre-drafts of one verification of one request."""

    ranking: OutcomeRanking
    untried: list[RankedOutcome] | None = None  # outcomes not sent yet; None: not ranked yet
    num_sent: int = 0
    num_tokens: int = 0  # asked of the drafter
    by_outcome: dict[Outcome, PreDraft] = field(default_factory=dict)  # sent and not lost
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
        """Tokens asked of the drafter for outcomes that did not happen."""
        return self.num_tokens - (0 if self.hit is None else self.hit.num_draft_tokens)

    def rank(
        self, draft: Draft, prefix: TokenIds, room_after: Callable[[tuple[int, ...]], int]
    ) -> list[RankedOutcome]:
        """Return the outcomes not sent yet that leave room for a draft, likeliest first.

        They are ranked once, for the draft that is being verified.
        """
        if self.untried is None:
            self.untried = []  # also if the ranking fails
            ranked = self.ranking.rank(draft, prefix)
            self.untried = [one for one in ranked if room_after(one.outcome.committed(draft.tree))]
        return self.untried

    def send(self, pre_draft: PreDraft) -> None:
        """Count a pre-draft as on its way; `arrive` or `lose` must follow."""
        outcome = pre_draft.outcome
        self.untried = [one for one in self.untried or () if one.outcome != outcome]
        self.num_sent += 1
        self.num_tokens += pre_draft.num_draft_tokens
        self.by_outcome[outcome] = pre_draft

    def arrive(self, pre_draft: PreDraft, draft: Draft) -> bool:
        """Keep a draft; return whether its request waits for it."""
        pre_draft.draft = draft
        return self.happened == pre_draft.outcome

    def lose(self, pre_draft: PreDraft) -> bool:
        """Forget a pre-draft that will not come; return whether its request waits for it."""
        was_on_its_way = self.by_outcome.pop(pre_draft.outcome, None) is not None
        return was_on_its_way and self.happened == pre_draft.outcome
