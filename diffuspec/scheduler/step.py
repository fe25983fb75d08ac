"""What a request does now: its progress, what is read of its prefix, its step, and drafts ahead.

Two kinds of drafts are made ahead. An early draft is asked for while the target reads the prompt.
Pre-drafts are made for outcomes of a verification under way, before its verdict is known. When the
verdict is one of those outcomes (a hit), the next draft is there already or on its way; a miss is
drafted just in time. Neither changes a token of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diffuspec.algorithm.draft_tree import prune_draft
from diffuspec.algorithm.outcomes import Outcome, OutcomeRanking, RankedOutcome
from diffuspec.core.errors import VerifierError
from diffuspec.core.types import (
    EMPTY_DRAFT,
    Draft,
    DraftRequest,
    PreDraftResult,
    TokenIds,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
)
from diffuspec.text.prefix import Prefix
from diffuspec.text.prompt_scoring import PromptScoring

_FEW_TOKENS = 8  # rows of a short draft: so few are read beside decoding, without a prefill


State: TypeAlias = Literal["waiting", "drafting", "verifying", "finished"]


class Progress:
    """The state of a request, and the seconds spent in each state."""

    def __init__(self) -> None:
        self.state: State = "waiting"
        self.waits_for = "a slot"
        self.since = time.monotonic()  # begin of the state
        self._seconds: dict[str, float] = {}  # time in earlier states

    def enter(self, state: State, waits_for: str) -> None:
        """Note what the request waits for now; it stays finished once it is."""
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
    """The coming step of a request. Points in time are time.monotonic()."""

    started_at: float = 0.0  # time of the previous verdict, or the admission
    verify_busy_seconds: float = 0.0  # total of the verifier at the beginning
    draft_busy_seconds: float = 0.0  # total of the drafters at the beginning
    ready_at: float = 0.0  # arrival of the draft, or decision to go without one
    drafting_seconds: float = 0.0  # wait for the drafter, transport included
    prefill_seconds: float = 0.0  # the verifier's time for prompt chunks ahead of the step
    prefill_transport_seconds: float = 0.0  # transport of these chunks, both ways
    draft: Draft = EMPTY_DRAFT
    num_draft_tokens: int = 0  # length asked of the drafter
    reach: Sequence[float] = ()  # reach of the draft's nodes; empty: it is verified whole
    num_expected: float = 0.0  # tokens of the draft to be accepted; 0: not known
    is_settled: bool = False  # the draft is there, or the step goes without one
    is_trial: bool = False  # the draft is to tell whether drafts pay
    fallback: str | None = None  # why the step has no draft although one was due

    def skip(self, reason: str | None) -> None:
        """Go without a draft. `reason`: see StepStats.fallback."""
        self.draft, self.num_draft_tokens, self.reach = EMPTY_DRAFT, 0, ()
        self.is_settled, self.fallback = True, reason

    def cut(self, num_nodes: int) -> None:
        """Keep only the likeliest nodes of the draft, if it has more."""
        reach = self.reach
        if num_nodes < len(reach):
            # Parents first: no node is likelier to be reached than its parent.
            order = sorted(range(len(reach)), key=reach.__getitem__, reverse=True)[:num_nodes]
            self.draft = prune_draft(self.draft, order) if order else EMPTY_DRAFT
            self.num_expected = sum([reach[node] for node in order])
        self.reach = ()


class Prefill:
    """Has the target read a long prefix in several verifications, ahead of the step.

    Only the target knows how much of it is cached: it is given the whole prefix with a limit on
    what it reads at a time, and says how much it left.
    """

    def __init__(self, request_id: str, prefix: Prefix, scoring: PromptScoring | None) -> None:
        """`scoring` is None if no log-probabilities of the prompt are asked for."""
        self.num_read = 0  # tokens of the prefix that are in the target's cache
        self._num_cached: int | None = None  # tokens that earlier requests left there
        self._is_stuck = False  # the last verification left as much unread as the one before
        self._request_id = request_id
        self._prefix = prefix
        self._scoring = scoring

    @property
    def num_unread(self) -> int:
        """Tokens of the prefix that the target reads in the coming step; 1 while decoding."""
        return self._prefix.num_tokens - self.num_read

    @property
    def is_long(self) -> bool:
        """Whether the coming step reads more than it would in the time of a decoding step."""
        return self._prefix.num_tokens - self.num_read > _FEW_TOKENS

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt's tokens scored so far; empty if not asked for."""
        return self._scoring.logprobs if self._scoring is not None else ()

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that other requests had left in the target's cache."""
        return min(self._num_cached or 0, self._prefix.num_prompt_tokens)

    def finish(self) -> None:
        """Note that a verdict is committed: the target has read all tokens but its own last one."""
        self.num_read = self._prefix.num_tokens - 1

    def limit(self, most: int) -> int | None:
        """Return how many tokens a verification may read: `most`, or None for all of them.

        All if the last verification got no further, because the verifier lost its cache or gave the
        place to others: otherwise the reading might never end.
        """
        return None if self._is_stuck else most

    def next_scored(self, max_nodes: int, most: int) -> VerifyRequest | None:
        """Return the next part of a prompt that is scored, of at most `max_nodes` tokens."""
        if self._scoring is None or self._scoring.is_finished:
            return None
        return self._scoring.next_chunk(self._request_id, max_nodes, self.limit(most))

    def take(self, asked: VerifyRequest, verdict: Verdict) -> bool:
        """Note what the target has read; return whether the verdict is that of the coming step.

        False: it read a part of the prefix only. Raises VerifierError for a wrong verdict.
        """
        if self._num_cached is None:
            self._num_cached = verdict.num_cached_tokens
        if verdict.num_unread_tokens:
            num_read = len(asked.prefix) - verdict.num_unread_tokens
            if num_read < 1 or asked.max_read_tokens is None:
                raise VerifierError(
                    f"the verifier left {verdict.num_unread_tokens} tokens unread of "
                    f"{len(asked.prefix)}, with a limit of {asked.max_read_tokens}"
                )
            self._is_stuck = num_read <= self.num_read
            self.num_read = num_read
            return False
        self._is_stuck = False
        if asked.is_of_prompt and self._scoring is not None:
            read = len(asked.prefix) + asked.tree.num_nodes
            self.num_read = min(read, self._prefix.num_tokens - 1)
            self._scoring.take(asked, verdict)
            return False
        return True


@dataclass(slots=True)
class EarlyDraft:
    """A draft asked for while the target reads the prompt, without the first token."""

    num_tokens: int  # size of the prefix that it was asked for
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
    num_tokens: int = 0  # length asked of the drafter
    by_outcome: dict[Outcome, PreDraft] = field(default_factory=dict)  # pre-drafts not lost
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
            self.untried = []  # It stays empty if the ranking fails.
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
