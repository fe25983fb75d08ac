"""The values of a decision: what is known (Snapshot), and what to do (Plan).

All are frozen: requests and drafters appear as ids, names and numbers, never as live objects.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from diffuspec.core.pages import num_pages_of
from diffuspec.speculation.acceptance import Prospects
from diffuspec.speculation.costs import CostModel
from diffuspec.speculation.guard import SpeculationGuard
from diffuspec.speculation.outcomes import Outcome

FEW_TOKENS = 8  # rows of a short draft: this few tokens are read beside decoding

CallState: TypeAlias = Literal["ready", "drafting", "verifying"]


class DraftTicket(NamedTuple):
    """One draft, from the plan that requests it to the verdict on it."""

    request_id: str
    length: int  # requested number of tokens
    outcome: Outcome | None = None  # for a pre-draft: what the verification under way may end in
    is_exploration: bool = False  # whether it tests that drafts still do not pay

    @property
    def is_awaited(self) -> bool:
        """Whether its request waits for it; False: a pre-draft."""
        return self.outcome is None


class PossibleOutcome(NamedTuple):
    """What a verification under way may end in."""

    outcome: Outcome
    probability: float
    room: int  # drafted tokens that may be committed after it


class RequestView(NamedTuple):
    """What a decision needs to know of a request."""

    request_id: str
    state: CallState
    drafter: str  # name of the drafters that may draft for it
    home: int | None  # number of the drafter that drafts for it, while that is available
    held_by: Sequence[int]  # numbers of the drafters that may hold its prefix
    num_tokens: int  # tokens of its prefix
    num_unread: int  # prefix tokens that the target reads next: 1 while decoding
    room: int  # drafted tokens that may still be committed
    fixed_length: int | None  # length of its drafts; 0: none; None: by cost
    is_priced: bool  # whether outcomes are pre-drafted by cost; False: all that are listed here
    is_suspect: bool  # workers were lost repeatedly while they worked on it
    prospects: Prospects
    max_nodes: int = 0  # nodes of its widest draft tree
    is_settled: bool = False  # its draft has arrived, or this step goes without one
    ticket: DraftTicket | None = None  # its draft has this one
    reach: Sequence[float] = ()  # reach of the draft's nodes
    outcomes: Sequence[PossibleOutcome] = ()  # verification may end so; not pre-drafted

    @property
    def num_pages(self) -> int:
        """Pages of the target's cache that hold its tokens; some may be shared with others."""
        return num_pages_of(self.num_tokens - self.num_unread)

    @property
    def is_long(self) -> bool:
        """Whether the next step reads more than fits into the time of a decoding step."""
        return self.num_unread > FEW_TOKENS

    @property
    def may_draft(self) -> bool:
        """Whether a draft for the next step makes sense."""
        return self.room > 0 and self.fixed_length != 0 and not self.is_settled


class CallView(NamedTuple):
    """A draft call in flight."""

    awaited: Sequence[DraftTicket]  # one for each request whose next step waits for it
    started_at: float
    ends_at: float  # expected

    def is_overdue(self, now: float) -> bool:
        """Return whether it has taken twice as long as expected: it may hang."""
        return now - self.started_at > 2 * (self.ends_at - self.started_at)


class DrafterView(NamedTuple):
    """One drafter of a pool."""

    number: int
    name: str  # requests choose it by this
    is_available: bool  # whether requests may be placed with it
    is_gone: bool  # whether it leaves once its call has ended
    is_check_due: bool  # whether its pause after a failure is over
    may_pre_draft: bool  # large batches may fail where small ones succeed
    num_held: int  # requests whose prefixes it may hold
    call: CallView | None

    @property
    def is_idle(self) -> bool:
        return self.call is None and not self.is_gone


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a coordinator's calls: see CoordinatorConfig."""

    first_token_price: float
    overlap: bool
    max_prefill_seconds: float  # most seconds that prompts may add to a verification
    max_prefill_tokens: int  # most tokens of one prompt in one verification
    max_reading_seconds: float  # most seconds that a draft call may take for several prompts
    row_multiple: int = 1  # see TargetInfo


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a coordinator at one moment."""

    now: float  # points in time are of time.monotonic()
    requests: Sequence[RequestView]  # running ones, the oldest first, but those that are paused
    drafters: Sequence[DrafterView]
    costs: CostModel
    guard: SpeculationGuard
    limits: Limits
    verification_ends_at: float | None = None  # expected; None: the verifier is idle
    verifier_at: float = 0.0  # time at which an unavailable verifier is called again
    # Groups in each of which one request made the verifier fail; the first is verified next.
    isolated: Sequence[Sequence[str]] = ()
    alone: str | None = None  # a suspect that runs alone
    rate: float = 0.0  # tokens per second expected by the last plan
    num_free_pages: float = math.inf  # pages of the target's cache; math.inf: it has no limit
    # pages of requests that wait for their readers; the last one is preempted first
    paused: Mapping[str, int] = field(default_factory=dict)


class Score(NamedTuple):
    """The expected result of a candidate plan until each request in it has had its step."""

    name: str
    tokens: float  # committed tokens, and the value of drafts in hand
    seconds: float
    delay: float  # sum of the seconds until its first tokens
    value: float  # tokens minus the price of the seconds and delays

    def __str__(self) -> str:
        delay = f", first tokens wait {1e3 * self.delay:.1f} ms" if self.delay else ""
        size = f"{self.tokens:.1f} tokens in {1e3 * self.seconds:.2f} ms"
        return f"{self.name} {self.value:+.2f} ({size}{delay})"


class DraftPlan(NamedTuple):
    """One call of a drafter: the drafts that requests wait for, then pre-drafts."""

    drafter: int  # its number
    tickets: Sequence[DraftTicket]
    seconds: float  # expected
    num_unread: int  # prompt tokens that the drafter reads


class Plan(NamedTuple):
    """The calls to start now, and the time until which to wait for the next event."""

    verify: Sequence[str] = ()  # requests of one call; those without a draft go without
    # nodes to verify, likeliest first, of drafts that are cut
    num_nodes: Mapping[str, int] = {}
    max_read: Mapping[str, int] = {}  # most tokens to read of long prompts
    drafts: Sequence[DraftPlan] = ()
    homes: Mapping[str, int] = {}  # requests placed with another drafter
    # failed drafters to try, each with a request whose draft request is copied
    health_checks: Sequence[tuple[int, str]] = ()
    # requests that lose their pages before the verification: they are read again later
    preempted: Sequence[str] = ()
    waiting: frozenset[str] = frozenset()  # requests without pages for their next step
    alone: str | None = None  # see Snapshot
    num_running: int = 0  # decoding requests, which neither read prompts nor wait for a suspect
    wait_until: float = math.inf
    rate: float = 0.0  # best expected tokens per second of any plan
    considered: Sequence[Score] = ()  # candidates, the winner first
    reasons: Mapping[str, str] = {}  # why requests are not drafted for

    def __str__(self) -> str:
        """Describe the calls, the candidates' scores, and the reasons for missing drafts."""
        nodes = sum(self.num_nodes.values())
        verify = f"verify {len(self.verify)}" + (f" ({nodes} nodes)" if nodes else "")
        lengths = [
            "/".join([str(ticket.length) for ticket in call.tickets]) for call in self.drafts
        ]
        checks = [f"check drafter {number}" for number, _ in self.health_checks]
        if self.preempted:
            checks.append(f"preempt {len(self.preempted)}")
        calls = ", ".join([verify, f"draft {lengths}", *checks])
        reasons = Counter(
            [self.reasons[request_id] for request_id in self.verify if request_id in self.reasons]
        )
        causes = [why if n == 1 else f"{n} x {why}" for why, n in reasons.items()]
        details = "; ".join(filter(None, [", ".join(map(str, self.considered)), *causes]))
        return f"{calls}, at {self.rate:.0f} tokens/s" + (f": {details}" if details else "")
