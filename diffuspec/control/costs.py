"""The cost of drafting and verifying on this hardware, measured while decoding.

A measured time is that of a role's whole answer: the forward, waiting for the worker and
transport. Nothing is assumed in advance: a curve without measurements has is_known False.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence

from diffuspec.control.cost_curve import SMOOTHING, CostCurve
from diffuspec.control.learnt_costs import LearntCosts
from diffuspec.control.loss_budget import LossBudget

_MAX_WAIT = 3.0  # most that one wait counts in exposed_share
_ALONE = 0.05  # a verification with drafting beside it for at most this share counts as alone
_MAX_CROWDING = 1.5
_MUCH_CROWDING = 0.75  # of two roles that share a processor
_MAX_CROWDED = 64  # verifications in a row; later ones update the cost of one alone
_FEW = 0.01  # with fewer other requests on average, there have been none for a while
_MUCH_LONGER = 4.0  # verifications of one row: what reading one more prompt may add


class StepCosts:
    """The costs of a step's parts, and the load of the rest of the batch. One per drafter.

    other_requests, other_rows, other_positions and other_tokens are moving averages over recent
    batches: the other requests of a batch, rows they fed to the target, masked positions they fed
    to the drafter, and tokens they committed. They make a request in a full batch draft less than
    one alone.
    exposed_share is the part of a draft's time that its request waits: 1 unless there are
    pre-drafts.
    crowding is the number of seconds that one second of drafting adds to a verification at the same
    time: 0 if the roles share nothing, about 1 if they share a processor.
    """

    def __init__(self, crowding: float = 0.0) -> None:
        """`crowding` is assumed until it is measured."""
        self.crowding = crowding
        self.num_crowded = 0  # latest verifications in a row with drafting beside them
        self.num_alone = 0  # all verifications without drafting beside them
        self._num_rates = 0  # measurements of crowding
        self.exposed_share = 1.0
        self.reading_seconds = 0.0  # the drafter's, for one token of a prompt
        self._num_readings = 0
        self.other_requests = 0.0
        self.other_rows = 0.0
        self.other_positions = 0.0
        self.other_tokens = 0.0
        self._loss_budget = LossBudget()
        self._num_running = 1
        self._of_one = LearntCosts()  # while one request has been running for a while
        self._of_several: LearntCosts | None = None
        self._learnt = self._of_one

    @property
    def verify(self) -> CostCurve:
        """Seconds by rows fed to the target."""
        return self._learnt.verify

    @property
    def draft(self) -> CostCurve:
        """Seconds by masked positions of the batch."""
        return self._learnt.draft

    @property
    def overhead_seconds(self) -> float:
        """Time of a step with a draft that is neither drafting nor verification."""
        return self._learnt.overhead_seconds

    @property
    def num_running(self) -> int:
        """Requests that would share a batch if none drafted."""
        return self._num_running

    @num_running.setter
    def num_running(self, number: int) -> None:
        self._num_running = number
        if number < 2 and self.other_requests < _FEW:
            self._learnt = self._of_one
            return
        if self._of_several is None:
            self._of_several = copy.deepcopy(self._of_one)
        self._learnt = self._of_several

    @property
    def must_decode_plainly(self) -> bool:
        """Whether drafts have lost several requests too much time, or may do so: see LossBudget."""
        budget, number = self._loss_budget, self._num_running
        return number > 1 and (budget.is_spent(number) or budget.is_waiting(number))

    def observe_progress(self, num_tokens: int, seconds: float, is_plain: bool) -> None:
        """Learn from the time in which the running requests committed that many tokens.

        is_plain: nothing was drafted for any request in that time.
        """
        if self._num_running > 1:
            self._loss_budget.observe(num_tokens, self._num_running, seconds, is_plain)

    def observe_beside_prompts(
        self,
        num_rows: int,
        num_nodes: int,
        num_kept_out: int,
        num_gained_tokens: int,
        seconds: float,
    ) -> None:
        """Learn from a verification that read prompts what drafts have cost and gained.

        num_rows: fed to the target besides the nodes of drafts. num_kept_out: requests that would
        have been in the batch, but for their drafts. Without drafts, all requests would have
        committed num_gained_tokens fewer, more if it is below 0, and those `seconds` earlier, and
        what the nodes have taken, but later by what the rows of those kept out would have taken.
        """
        if num_nodes or num_kept_out or num_gained_tokens or seconds:
            seconds += self.verify.at(num_rows + num_nodes) - self.verify.at(num_rows)
            seconds -= self._added_by(num_kept_out)
            self.observe_progress(num_gained_tokens, seconds, is_plain=False)

    def observe_verify(
        self,
        num_rows: int,
        num_requests: int,
        num_tokens: int,
        seconds: float,
        drafting_seconds: float = 0.0,
    ) -> None:
        """Learn from one verified batch: rows fed, requests in it, tokens committed by it.

        For drafting_seconds of that time a draft call was in flight.
        """
        self._observe_alone_or_crowded(num_rows, num_requests, seconds, drafting_seconds)
        others = (num_requests - 1) / num_requests
        self.other_requests += SMOOTHING * (num_requests - 1 - self.other_requests)
        self.other_rows += SMOOTHING * (num_rows * others - self.other_rows)
        self.other_tokens += SMOOTHING * (num_tokens * others - self.other_tokens)

    def of_drafting(self, lengths: Sequence[int], num_nodes: Sequence[int]) -> list[float]:
        """Return the cost of a step in which all requests draft, for each of the rising lengths.

        The unit is a step of plain decoding; `num_nodes` are verified of a draft of each length.
        All requests are counted as drafting, since drafts that pay for all may not pay for the
        first request to begin, nor may a single request gain by stopping when they do not pay.
        """
        running, crowding, learnt = self._num_running, self.crowding, self._learnt
        count = max(1 + self.other_requests, running / 2)  # in one batch; two may alternate
        turns = max(running / count, 1.0)  # batches until each request has had a step
        share, plain = min(self.exposed_share, 1.0), learnt.plain_step(running)
        draft = learnt.draft.up_to(round(count * lengths[-1]))
        verify = learnt.verify.up_to(round(count * (1 + num_nodes[-1])))
        found: list[float] = []
        for length, number in zip(lengths, num_nodes, strict=True):
            drafting = share * draft[round(count * length)]
            verifying = verify[round(count * (1 + number))]
            apart, longer = drafting + verifying, max(drafting, verifying)
            busy = turns * (longer + crowding * (apart - longer))
            found.append(max(apart + learnt.overhead_seconds, busy) / plain)
        return found

    def of_trial(self, length: int, num_nodes: int, num_unread: int) -> float:
        """Return what a draft of one request costs a batch that otherwise decodes without drafts.

        The unit is a plain step of one request. Its own request waits for the draft, and for the
        drafter to read `num_unread` tokens; every other request is slowed down by that, and by the
        additional rows.
        """
        count = self.num_running
        if count < 2:
            return 0.0
        longer = self.verify.at(count + num_nodes) - self.verify.at(count)
        drafting = self.draft.at(length) + num_unread * self.reading_seconds
        others = (count - 1) * (longer + self.crowding * drafting)
        return (drafting + others) / self._learnt.plain_step(count)

    def saved_by_joining(self, rows: tuple[int, int], positions: tuple[int, int]) -> float:
        """Return the seconds by which one batch of all requests beats two halves that alternate.

        `rows` and `positions`: what each half verifies and drafts. In one batch, all draft and then
        all verify. As halves, one drafts while the other verifies, and they slow each other down.
        """
        drafting = sum(self.draft.at(number) for number in positions)
        verifying = sum(self.verify.at(number) for number in rows)
        longer, shorter = max(drafting, verifying), min(drafting, verifying)
        together = min(self.exposed_share, 1.0) * self.draft.at(sum(positions))
        return longer + self.crowding * shorter - (together + self.verify.at(sum(rows)))

    def rows_beside(self, num_read: int, most: int) -> int:
        """Return how many rows of drafts, up to `most`, to verify beside `num_read` prompt tokens.

        First tokens wait for those rows. They may add as much as a verification of one row takes:
        a verification of their own would cost that in addition.
        """
        seconds = self.verify.up_to(num_read + most)
        limit = seconds[num_read] + seconds[1]
        return bisect_right(seconds, limit, num_read + 1, num_read + most + 1) - (num_read + 1)

    def num_read_first(self, num_unread: Sequence[int]) -> int:
        """Return how many prompts to read now, given their unread tokens, shortest first.

        The next prompt waits for another verification if it would delay the first tokens of the
        shorter ones by more than _MUCH_LONGER.
        """
        seconds = self.verify.up_to(sum(num_unread))
        num_read = num_unread[0]
        for index, number in enumerate(num_unread[1:], start=1):
            if seconds[num_read + number] - seconds[num_read] > _MUCH_LONGER * seconds[1]:
                return index
            num_read += number
        return len(num_unread)

    def delays_reading(self, drafting_seconds: float) -> bool:
        """Return whether a draft call would slow the reading of prompts beside it down too much.

        The limit is what the rows of the running requests add to a verification without drafts.
        """
        return self.crowding * drafting_seconds > self._added_by(self.num_running - 1)

    def _added_by(self, num_requests: int) -> float:
        """Return the seconds that so many more requests add to a verification without drafts."""
        curve = self._learnt.of_plain_batches
        return curve.at(1 + num_requests) - curve.at(1)

    def outlasts_plain_step(self, drafting_seconds: float) -> bool:
        """Return whether a draft call takes longer than all requests' next step without drafts."""
        return self._learnt.plain_step(self._num_running) < drafting_seconds

    @property
    def is_crowded(self) -> bool:
        """Whether drafting adds most of its own time to a verification at the same time."""
        return self.crowding >= _MUCH_CROWDING

    @property
    def is_alone_wanted(self) -> bool:
        """Whether the next verification should run alone, to measure its cost without drafting."""
        every = 8 if self.num_alone < 2 else 32
        return self.num_crowded % every == every - 1

    def alone(self, num_rows: int, seconds: float, drafting_seconds: float) -> float:
        """Return what a verification would have taken with no drafting at the same time."""
        if drafting_seconds <= _ALONE * seconds or not self.verify.is_known:
            return seconds
        return min(self.verify.at(num_rows), seconds)

    def _observe_alone_or_crowded(
        self, num_rows: int, num_requests: int, seconds: float, drafting_seconds: float
    ) -> None:
        if drafting_seconds <= _ALONE * seconds:
            if self.num_alone == 0 and self.num_crowded:  # so far only estimated: measure afresh
                self._learnt.forget_verifying()
            self.num_crowded = 0
            self.num_alone += 1
            self._learnt.observe_verify(num_rows, num_requests, seconds)
            return
        self.num_crowded += 1
        if self.verify.is_known:
            longer = seconds - self._learnt.verifying(num_rows, num_requests)
            rate = min(max(longer / drafting_seconds, 0.0), _MAX_CROWDING)
            self._num_rates += 1
            self.crowding += max(SMOOTHING, 1 / self._num_rates) * (rate - self.crowding)
        if not self.verify.is_known or self.num_crowded > _MAX_CROWDED:
            alone = max(seconds - self.crowding * drafting_seconds, 0.0)
            self._learnt.observe_verify(num_rows, num_requests, alone)

    def observe_draft(self, num_positions: int, num_requests: int, seconds: float) -> None:
        """Learn from one drafted batch: masked positions and requests in it."""
        self.draft.observe(num_positions, seconds)
        others = (num_requests - 1) / num_requests
        self.other_positions += SMOOTHING * (num_positions * others - self.other_positions)

    def observe_reading(self, num_tokens: int, num_positions: int, seconds: float) -> None:
        """Learn from a batch of drafts for which the drafter read `num_tokens` of prompts."""
        each = max(seconds - self.draft.at(num_positions), 0.0) / num_tokens
        self._num_readings += 1
        self.reading_seconds += max(SMOOTHING, 1 / self._num_readings) * (
            each - self.reading_seconds
        )

    def observe_pre_drafts(self, num_positions: int, seconds: float) -> None:
        """Learn from a batch of pre-drafts, possibly with drafts that requests waited for."""
        self.draft.observe(num_positions, seconds)

    def observe_wait(self, num_positions: int, seconds: float) -> None:
        """Learn how long a request waited for its draft; 0 seconds if a pre-draft was there.

        The wait is a share of the time of a batch of the usual size, so that drafting for other
        requests in the same batch counts as no longer wait.
        """
        whole = self.draft.at(num_positions + round(self.other_positions))
        if whole > 0:
            share = min(seconds / whole, _MAX_WAIT)
            self.exposed_share += SMOOTHING * (share - self.exposed_share)

    def observe_overhead(self, seconds: float) -> None:
        """Learn from a step with a draft: its time that is neither drafting nor verification.

        At most the time of a usual verification counts. A draft may wait for a longer one that
        reads other requests' prompts, but so would its request without a draft.
        """
        longest = self.verify.at(round(self.other_rows) + 1)
        self._learnt.observe_overhead(min(seconds, longest))

    def observe_plain_overhead(self, seconds: float) -> None:
        """Learn from a step in a batch without drafts: its time that is not verification."""
        self._learnt.observe_plain_overhead(seconds)


class BusyTime:
    """Total seconds with a call in flight; overlapping calls count once."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._num_calls = 0
        self._since = 0.0

    def begin(self, now: float) -> None:
        if not self._num_calls:
            self._since = now
        self._num_calls += 1

    def end(self, now: float) -> None:
        self._num_calls -= 1
        if not self._num_calls:
            self._seconds += now - self._since

    def seconds(self, now: float) -> float:
        """Return the total seconds with a call in flight, up to `now`."""
        return self._seconds + (now - self._since if self._num_calls else 0.0)
