"""The scheduler's input, its decision, and the scores of candidate plans.

A score is expected tokens minus the price of seconds and of awaited first tokens. A second costs as
many tokens as the best alternative commits in one. A second during which one first token is awaited
costs `first_token_price` times that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diffuspec.adl.baseline import Baseline
from diffuspec.adl.cost_model import CostModel, DraftCosts
from diffuspec.scheduler.calls import DraftCall, Lane, VerifyCall
from diffuspec.scheduler.request import Request


@dataclass(slots=True)
class Snapshot:
    """The state of the coordinator at one moment. `schedule` reads it without changing it."""

    now: float  # time.monotonic()
    ready: Sequence[Request]  # running requests that are in no call on which their step depends
    num_running: int  # decoding requests: neither reading a prompt nor held for their reader
    lanes: Sequence[Lane]
    home: Callable[[Request], Lane | None]  # returns the lane that drafts for a request
    verification: VerifyCall | None  # the verification in flight
    isolated: Sequence[Request]  # requests to verify alone: the verifier failed on one of them
    verifier_at: float  # time at which an unavailable verifier is called again
    costs: CostModel
    baseline: Baseline
    first_token_price: float
    overlap: bool
    max_prefill_seconds: float  # most seconds that prompts may add to a verification
    max_prefill_tokens: int  # most tokens of one prompt in one verification, whatever they take
    max_draft_seconds: float  # time after which a draft call is given up
    rate: float  # tokens per second expected by the last plan
    # False: the client of an answer that has just ended may be about to send another request
    may_begin: bool = True
    _chunk_tokens: int = field(default=0, init=False)  # a cache; 0: not computed

    @property
    def prefill_chunk_tokens(self) -> int:
        """Most tokens of one prompt in one verification."""
        if not self._chunk_tokens:
            seconds = max(self.max_prefill_seconds, self.costs.plain_seconds(self.num_running))
            self._chunk_tokens = self.costs.num_rows_within(seconds, self.max_prefill_tokens)
        return self._chunk_tokens


class Score(NamedTuple):
    """The expected result of a candidate plan until each request in it has had its step."""

    name: str
    tokens: float  # committed tokens, and the value of drafts in hand
    seconds: float
    delay: float  # sum of the seconds until its first tokens
    value: float  # tokens minus the price of the seconds and delays

    def plus(self, tokens: float) -> Score:
        """Return the score of a plan for which the cost of these tokens is already paid."""
        return self._replace(value=self.value + tokens) if tokens else self


@dataclass(slots=True)
class Plan:
    """The calls to start now, and the time until which to wait for the next event."""

    # requests of one call; those without a draft are verified without one
    verify: Sequence[Request] = ()
    # number of nodes to verify, for drafts that are cut
    num_nodes: dict[Request, int] = field(default_factory=dict)
    drafts: list[DraftCall] = field(default_factory=list)
    wait_until: float = math.inf  # time.monotonic() of the next look
    prefill_chunk_tokens: int = 2**31 - 1  # most tokens of one prompt to read
    rate: float = 0.0  # best expected tokens per second of any plan
    considered: Iterable[Score] = ()  # the candidates, the winner first; can be read only once


class Batch(NamedTuple):
    """Requests that are verified together."""

    num_rows: float = 0.0
    num_requests: float = 0
    num_prompts: float = 0  # requests whose first token is awaited
    tokens: float = 0.0  # expected committed tokens
    positions: float = 0.0  # positions drafted for them

    def plus(self, *others: Batch) -> Batch:
        return Batch(*map(sum, zip(self, *others, strict=True)))


@dataclass(slots=True)
class Drafts:
    """The calls that idle drafters could make now for open requests."""

    calls: list[DraftCall] = field(default_factory=list)
    batch: Batch = field(default_factory=Batch)  # requests of the calls, once drafted
    seconds: float = 0.0  # time of the longest call
    rate: float = 0.0  # best tokens per second
    trials: dict[Request, float] = field(default_factory=dict)  # costs of trials, in plain steps
    prepaid: float = 0.0  # value in tokens of the time for trials, which was saved up


def batch_of(s: Snapshot, requests: Iterable[Request]) -> Batch:
    """Return the expected reading and committed tokens of a verification of these requests."""
    rows = tokens = 0.0
    number = prompts = positions = 0
    for request in requests:
        number += 1
        step, unread = request.step, request.prefill.num_unread
        if request.prefill.is_long:
            prompts += 1
            rows += min(unread, s.prefill_chunk_tokens)
            tokens += unread <= s.prefill_chunk_tokens
        else:
            rows += 1 + step.draft.tree.num_nodes
            tokens += 1 + (step.num_expected or request.expectation.at(step.num_draft_tokens))
            positions += step.num_draft_tokens
    return Batch(rows, number, prompts, tokens, positions)


def plain_batch(number: int) -> Batch:
    """Return the batch of this many requests without drafts."""
    return Batch(number, number, 0, number)


class Scorer:
    """Predicts the result of a candidate: see Score."""

    def __init__(self, s: Snapshot, rate: float, drafting: DraftCosts) -> None:
        """`rate`: price of a second in tokens; `drafting`: costs of the drafter in question."""
        self._s, self._rate, self._drafting = s, rate, drafting

    def score(
        self, name: str, first: Batch, drafting_seconds: float, then: Batch, num_later: int = 0
    ) -> Score:
        """Score a plan that verifies `first` now, beside drafts that are verified with `then`.

        num_later: requests in neither, which may draft while `then` is verified.
        """
        rows, number = first.num_rows, first.num_requests
        seconds = self._s.costs.verify_seconds(rows, number) if number else 0.0
        first_ends, drafts_end = self._drafting.interference.ends(seconds, drafting_seconds)
        tokens, ends_at = first.tokens + then.tokens, max(first_ends, drafts_end)
        if then.num_requests:
            gain, last = self._best_second(first.num_requests + num_later, then)
            tokens, ends_at = tokens + gain, ends_at + last
        delay = first.num_prompts * first_ends + then.num_prompts * ends_at
        return self._scored(name, tokens, ends_at, delay)

    def _best_second(self, number: float, then: Batch) -> tuple[float, float]:
        """Return the gain of `number` requests while `then` is verified after them, and the time.

        They are verified with `then`, without drafts; or they draft meanwhile, and a draft in hand
        is worth the seconds that it took; or they do neither.
        """
        costs = self._s.costs
        alone = costs.verify_seconds(then.num_rows, then.num_requests)
        joint = costs.verify_seconds(then.num_rows + number, then.num_requests + number)
        options = [(0.0, alone), (number, joint)]
        if number and then.positions:
            each = then.positions / then.num_requests
            drafting = self._drafting.seconds(each * number, number)
            beside = max(self._drafting.interference.ends(alone, drafting))
            options.append((self._rate * drafting, beside))
        return max(options, key=lambda option: option[0] - self._rate * option[1])

    def _scored(self, name: str, tokens: float, seconds: float, delay: float) -> Score:
        price = seconds + self._s.first_token_price * delay
        return Score(name, tokens, seconds, delay, tokens - self._rate * price)
