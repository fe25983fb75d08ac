"""The present work on a request: its progress, prefill, step, and pre-drafts.

Two kinds of drafts are made ahead. An early draft is requested while the target reads the prompt.
Pre-drafts are made for outcomes of a running verification, before its verdict is known. If the
verdict is one of those outcomes (a hit), the next draft is ready or on its way; a miss is drafted
just in time. Neither changes a token of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diffuspec.algorithm.draft_tree import is_chain, prune_draft
from diffuspec.algorithm.outcomes import Outcome, OutcomeRanking, RankedOutcome
from diffuspec.core.errors import VerifierError
from diffuspec.core.types import (
    CACHE_BLOCK_TOKENS,
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

# rows of a short draft: this few tokens are read beside decoding, without a prefill
_FEW_TOKENS = 8


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
    num_draft_tokens: int = 0  # requested length
    reach: Sequence[float] = ()  # reach of the draft's nodes; empty: verify all of it
    num_expected: float = 0.0  # expected accepted tokens of the draft; 0: unknown
    is_settled: bool = False  # the draft has arrived, or the step goes without one
    trial_steps: float = 0.0  # plain steps paid for a draft that tests whether drafts pay
    fallback: str | None = None  # why the step has no draft although there should have been one

    def skip(self, reason: str | None) -> None:
        """Go without a draft. `reason`: see StepStats.fallback."""
        self.draft, self.num_draft_tokens, self.reach = EMPTY_DRAFT, 0, ()
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
            self.num_expected = sum([reach[node] for node in order])
        self.reach = ()


class Prefill:
    """Lets the target read a long prefix in several verifications, before the step.

    Only the target knows how much of it is cached: it gets the whole prefix, with a limit on the
    tokens to read at a time, and reports how many are left.
    """

    def __init__(
        self,
        request_id: str,
        prefix: Prefix,
        scoring: PromptScoring | None,
        *,
        is_salted: bool = False,
    ) -> None:
        """scoring: None if no log-probabilities of the prompt are requested.

        is_salted: the request shares cached prefixes only with those of the same salt.
        """
        self.num_read = 0  # tokens of the prefix in the target's cache
        self._num_cached: int | None = None  # tokens that earlier requests left there
        self._is_stuck = False  # the last verification made no progress
        self._request_id = request_id
        self._prefix = prefix
        self._scoring = scoring
        self._block = CACHE_BLOCK_TOKENS if is_salted else 1

    @property
    def num_unread(self) -> int:
        """Number of prefix tokens that the target reads in the next step; 1 while decoding."""
        return self._prefix.num_tokens - self.num_read

    @property
    def is_long(self) -> bool:
        """Whether the next step reads more than fits into the time of a decoding step."""
        return self._prefix.num_tokens - self.num_read > _FEW_TOKENS

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt tokens scored so far; empty if not requested."""
        return self._scoring.logprobs if self._scoring is not None else ()

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens that other requests had left in the target's cache.

        With a salt it is rounded down to whole blocks.
        """
        num_cached = min(self._num_cached or 0, self._prefix.num_prompt_tokens)
        return num_cached // self._block * self._block

    def finish(self) -> None:
        """Record a committed verdict: the target has read all tokens but its own last one."""
        self.num_read = self._prefix.num_tokens - 1

    def limit(self, most: int) -> int | None:
        """Return how many tokens a verification may read: `most`, or None for all.

        All if the last verification made no progress, because the verifier lost its cache or gave
        the slot to others: otherwise the prefill might never end.
        """
        return None if self._is_stuck else most

    def next_scored(self, max_nodes: int, most: int) -> VerifyRequest | None:
        """Return the next part of a scored prompt, of at most `max_nodes` tokens."""
        if self._scoring is None or self._scoring.is_finished:
            return None
        return self._scoring.next_chunk(self._request_id, max_nodes, self.limit(most))

    def take(self, asked: VerifyRequest, verdict: Verdict) -> bool:
        """Record what the target has read; return whether this is the verdict of the next step.

        False: it has only read a part of the prefix. Raises VerifierError for an invalid verdict.
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
    """A draft requested while the target reads the prompt, without the first token."""

    num_tokens: int  # length of the prefix for which it was requested
    length: int  # requested number of tokens
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
        return self.num_tokens - (0 if self.hit is None else self.hit.num_draft_tokens)

    def rank(
        self, draft: Draft, prefix: TokenIds, room_after: Callable[[tuple[int, ...]], int]
    ) -> list[RankedOutcome]:
        """Return the outcomes not sent yet that leave room for a draft, likeliest first.

        They are ranked once, for the draft being verified.
        """
        if self.untried is None:
            self.untried = []  # stays empty if the ranking fails
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
        """Store a draft; return whether its outcome has happened."""
        pre_draft.draft = draft
        return self.happened == pre_draft.outcome

    def lose(self, pre_draft: PreDraft) -> bool:
        """Forget a pre-draft that will not come; return whether its outcome has happened."""
        was_on_its_way = self.by_outcome.pop(pre_draft.outcome, None) is not None
        return was_on_its_way and self.happened == pre_draft.outcome
