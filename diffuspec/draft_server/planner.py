"""The planner: how much to draft for one engine, given its step times and acceptance.

It decides with `diffuspec.speculation`, as the scheduler of our own engine does. The difference is
that the engine waits for the drafts of all its requests together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diffuspec.draft_server.request import EngineRequest
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.curve import MAX_JUMP, SMOOTHING
from diffuspec.speculation.guard import (
    EXPLORATION_SHARE,
    NUM_PLAIN,
    Interval,
    SpeculationGuard,
)
from diffuspec.speculation.lengths import Ahead, Load, nodes_to_verify, num_ahead, size

_SHOWN_ROWS = (1, 2, 4, 8, 16)
_MAX_SILENT_STEPS = 64  # number of steps over which the cost of an answer becomes negligible
# Drafted steps between the first two measurements of plain decoding. An engine is not profiled, and
# other programs may have been running during the first one.
_FIRST_AFTER = 16
# steps after which an engine's machine is as likely to have another speed as not
_SAME_SPEED_STEPS = 8


@dataclass(frozen=True, slots=True)
class Sent:
    """What the engine verifies after an answer."""

    num_requests: int
    num_nodes: int
    draft_seconds: float  # time that the answer waited for the drafter
    reading_seconds: float  # the part of draft_seconds in which the drafter read prompts
    busy_seconds: float  # total busy seconds of the drafter when the answer was sent
    explores: bool = False  # whether a draft is not expected to pay

    @property
    def num_rows(self) -> int:
        return self.num_requests + self.num_nodes


class Planner:
    """Sizes the drafts of one engine, and learns from its steps."""

    def __init__(
        self,
        drafter: str,
        drafting: Callable[[], DraftCosts],
        num_draft_tokens: int | None = None,
    ) -> None:
        """`drafting` returns the costs of drafts, learnt from the calls of all engines.

        num_draft_tokens: one length for all drafts, which are made while the engine waits, whatever
        they cost; None: by cost.
        """
        self.is_fixed = num_draft_tokens is not None
        self._num_draft_tokens = num_draft_tokens
        self._drafter = drafter
        self._drafting = drafting
        # Drafts are assumed not to slow the engine down.
        mine = DraftCosts(Interference.assumed(0.0))
        self._learnt = CostModel({drafter: mine}, _SAME_SPEED_STEPS)
        self._guard = SpeculationGuard((drafter,), _FIRST_AFTER)
        self._overhead_seconds = 0.0  # a drafted step spends them besides its calls
        self._rate = 0.0  # tokens per second of the best choice
        self.explored: str | None = None  # the request whose draft is not expected to pay

    @property
    def costs(self) -> CostModel:
        """The costs of the engine's steps, and of drafts for it."""
        interference = self._learnt.drafters[self._drafter].interference
        drafting = replace(self._drafting(), interference=interference)
        return replace(self._learnt, drafters={self._drafter: drafting})

    @property
    def draft_costs(self) -> DraftCosts:
        """The costs of drafts for the engine."""
        return self.costs.drafters[self._drafter]

    def __str__(self) -> str:
        """Describe what it has learnt about the engine and drafts, in one line."""
        costs, mine = self.costs, self.draft_costs
        rows = "/".join(map(str, _SHOWN_ROWS))
        verify = [f"{1e3 * costs.verify_seconds(n, 1):.1f}" for n in _SHOWN_ROWS]
        draft = [f"{1e3 * mine.seconds(n, 1):.1f}" for n in _SHOWN_ROWS]
        return (
            f"a step of {rows} rows takes {'/'.join(verify)} ms, a draft "
            f"{'/'.join(draft)} ms; interference {mine.interference.value:.2f}, "
            f"overhead {1e3 * self._overhead_seconds:.1f} ms, {self._rate:.0f} tokens/s"
        )

    # ---- what to draft

    def lengths(self, requests: Sequence[EngineRequest]) -> dict[str, int]:
        """Return the draft lengths, by request; empty if the guard does not allow drafts."""
        may_draft = [request for request in requests if request.room > 0]
        self.explored = None
        if not may_draft:
            return {}
        if self._num_draft_tokens is not None:
            most = self._num_draft_tokens
            return {request.request_id: min(most, request.room) for request in may_draft}
        unread = {request.request_id: request.num_unread for request in may_draft}
        load = Load(
            self.costs,
            self._drafter,
            len(requests),
            len(may_draft),
            num_unread=unread,
            exposed_share=0.0,  # what is drafted ahead is hidden; waiting is decided separately
            overhead_seconds=self._overhead_seconds,
        )
        sized = size(may_draft, load, self._guard)
        self._rate, self.explored = sized.rate, sized.explored
        if sized.explored is not None:
            self._guard = self._guard.explore(self._drafter, len(requests))
        return dict(sized.lengths)

    def may_wait(
        self, requests: Sequence[EngineRequest], at_hand: Sequence[float], num_rows: int
    ) -> bool:
        """Return whether drafts of these requests are worth that the engine waits for them.

        at_hand: expected tokens of each request without such a draft. num_rows: other rows to
        verify.
        """
        explores = any([request.request_id == self.explored for request in requests])
        if self.is_fixed or explores or not self._rate:
            return True
        drafts = [request.prospects.verified_at(request.length) for request in requests]
        gains = [max(tokens - has, 0.0) for (tokens, _), has in zip(drafts, at_hand, strict=True)]
        positions = sum([request.length for request in requests])
        unread = sum([request.num_unread for request in requests])
        seconds = self.draft_costs.seconds(positions, len(requests), unread)
        sizes = num_rows, num_rows + sum([rows for _, rows in drafts])
        before, after = self.costs.verify_seconds_of(sizes, 1)
        return sum(gains) > self._rate * (seconds + after - before)

    def num_ahead(self, outcomes: Sequence[Ahead], seconds_left: float, num_verifying: int) -> int:
        """Return for how many outcomes to draft ahead: see `lengths.num_ahead`."""
        if self.is_fixed:
            return 0
        return num_ahead(outcomes, seconds_left, self.draft_costs, (), num_verifying)

    def num_nodes(self, reaches: Sequence[Sequence[float]], num_requests: int) -> list[int]:
        """Return for each draft the number of its likeliest nodes to send."""
        if self._num_draft_tokens is not None:
            return [min(len(reach), self._num_draft_tokens) for reach in reaches]
        if not self._learnt.is_known or not self._rate or not reaches:
            return [len(reach) for reach in reaches]
        return nodes_to_verify(reaches, num_requests, self._learnt, self._rate)

    def num_silent_steps(self, requests: Sequence[EngineRequest]) -> int:
        """Return the number of next steps that the engine need not report, if `lengths` is empty.

        Waiting for answers is not part of plain decoding, which is measured during these steps.
        """
        number = len(requests)
        if not any([request.room for request in requests]):
            return _MAX_SILENT_STEPS
        step = self._learnt.plain_seconds(number)
        if stopped := self._guard.num_stopped_steps(self._drafter, number):
            steps = stopped
        elif self._guard.wants_plain(number) or not self._learnt.is_known:
            steps = NUM_PLAIN
        else:  # no draft is worth it: few answers are waited for that say so
            steps = max(self._overhead_seconds / (EXPLORATION_SHARE * step), NUM_PLAIN)
        return min(int(steps), _MAX_SILENT_STEPS)

    # ---- reports of the engine

    def skip(self, num_requests: int) -> None:
        """Count a step from which nothing can be learnt, so that the wait for a plain one ends."""
        self._guard = self._guard.skip(num_requests)

    def observe_silence(self, num_requests: int, num_steps: int, seconds: float) -> None:
        """Learn from steps without drafts, the first of them after an answer."""
        each = seconds / num_steps
        plain = self._learnt.plain_seconds(num_requests) if self._learnt.is_known else each
        spent = num_steps * min(each, MAX_JUMP * plain)
        interval = Interval(num_requests, spent, plain, plain, num_steps=num_steps)
        self._guard, is_measured = self._guard.observe(interval)
        if is_measured:
            self._learnt = self._learnt.observe_plain(num_requests, each, each)

    def observe(
        self, sent: Sent, accepted: float, verify: float, wait: float, busy_seconds: float
    ) -> None:
        """Learn from a step in which the engine only verified what was sent.

        busy_seconds: the drafter's total busy time when the engine reported the step.
        """
        number, name, costs = sent.num_requests, self._drafter, self._learnt
        expected = costs.verify_seconds(sent.num_rows, number)
        if expected:  # a much longer step was disturbed by other programs
            verify = min(verify, MAX_JUMP * expected)
        drafting = min(busy_seconds - sent.busy_seconds, verify)
        # If an answer was delayed, at most the time of the step itself counts.
        overhead = max(min(wait - sent.draft_seconds, verify), 0.0)
        self._overhead_seconds += SMOOTHING * (overhead - self._overhead_seconds)
        plain = costs.plain_seconds(number) if costs.is_known else verify
        interval = Interval(number, wait + verify, plain, plain)
        if sent.num_nodes or drafting or sent.draft_seconds:
            rows, alone = costs.verify_seconds_of((sent.num_rows, number), number)
            spent = sent.draft_seconds + drafting + rows - alone
            interval = replace(
                interval,
                base_seconds=plain + sent.reading_seconds,
                cost_seconds={name: spent},
                accepted={name: accepted},
                explores=sent.explores,
            )
        self._guard, is_measured = self._guard.observe(interval)
        if is_measured:
            self._learnt = costs.observe_plain(number, verify, wait + verify)
        else:
            beside = {name: drafting}
            self._learnt = costs.observe_verification(sent.num_rows, number, verify, beside)
