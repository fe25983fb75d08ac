"""The cost of drafting and verifying on this hardware, measured while decoding.

A measured time is all that a role's answer takes: the forward, waiting for the worker and
transport. Nothing is assumed in advance: a curve without measurements has is_known False.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence

from diffuspec.control.cost_curve import SMOOTHING, CostCurve
from diffuspec.control.learnt_costs import LearntCosts

_MAX_WAIT = 3.0  # for a draft, in times of what one takes
_ALONE = 0.05  # a verification counts as alone up to this share of it with drafting beside it
_MAX_CROWDING = 1.5
_MAX_CROWDED = 64  # verifications in a row; after them the cost of one alone is out of date
_FEW = 0.01  # other requests, on average: there have been none for a while
_MUCH_LONGER = 4.0  # than a verification of one row: another prompt in it


class StepCosts:
    """The costs of a step's parts, and the load of the rest of the batch. One per drafter.

    other_requests, other_rows, other_positions and other_tokens are moving averages over recent
    batches: the other requests of a batch, rows they fed to the target, masked positions they fed
    to the drafter, and tokens they committed. They make a request in a full batch draft less than
    one alone.
    exposed_share is the part of a draft's time that is waited for: 1 unless there are pre-drafts.
    crowding is the number of seconds that one second of drafting adds to a verification at the same
    time: 0 if the roles share nothing, up to 1 if they share a processor.
    """

    def __init__(self, crowding: float = 0.0) -> None:
        """`crowding` is assumed until it is measured."""
        self.crowding = crowding
        self.num_crowded = 0  # verifications in a row with drafting at the same time
        self.num_alone = 0  # verifications without, in total
        self._num_rates = 0  # of crowding, measured
        self.exposed_share = 1.0
        self.reading_seconds = 0.0  # of the drafter, per token of a prompt
        self._num_readings = 0
        self.other_requests = 0.0
        self.other_rows = 0.0
        self.other_positions = 0.0
        self.other_tokens = 0.0
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
        """Return a step's cost with drafts of these rising lengths, in steps of plain decoding.

        If all requests draft so, and verify that many nodes. What pays for all of them may not pay
        for one alone to begin, nor to stop what does not.
        """
        running, crowding, learnt = self._num_running, self.crowding, self._learnt
        count = max(1 + self.other_requests, running / 2)  # halves may take turns
        turns = max(running / count, 1.0)  # at both roles
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
        """Return what a draft of this size for one request costs a plain batch of several.

        In steps of plain decoding, of all requests together: one waits for the draft, for which the
        drafter may have a prompt to read; the others are slowed down by that, and by more rows.
        """
        count = self.num_running
        if count < 2:
            return 0.0
        longer = self.verify.at(count + num_nodes) - self.verify.at(count)
        drafting = self.draft.at(length) + num_unread * self.reading_seconds
        others = (count - 1) * (longer + self.crowding * drafting)
        return (drafting + others) / self._learnt.plain_step(count)

    def saved_by_joining(self, rows: tuple[int, int], positions: tuple[int, int]) -> float:
        """Return the seconds that a step of all requests takes less than one of either half.

        Given the rows that both halves verify, and the masked positions that they draft. Together,
        all draft and then all verify. In halves one drafts while the other verifies, each slowing
        the other down.
        """
        drafting = sum(self.draft.at(number) for number in positions)
        verifying = sum(self.verify.at(number) for number in rows)
        longer, shorter = max(drafting, verifying), min(drafting, verifying)
        together = min(self.exposed_share, 1.0) * self.draft.at(sum(positions))
        return longer + self.crowding * shorter - (together + self.verify.at(sum(rows)))

    def rows_beside(self, num_read: int, most: int) -> int:
        """Return how many rows of drafts, at most `most`, may be verified while prompts are read.

        Given the tokens of prompts that are read. First tokens wait for those rows: they may take
        as long as a verification of one row, which is what one of their own would cost more.
        """
        seconds = self.verify.up_to(num_read + most)
        limit = seconds[num_read] + seconds[1]
        return bisect_right(seconds, limit, num_read + 1, num_read + most + 1) - (num_read + 1)

    def num_read_first(self, num_unread: Sequence[int]) -> int:
        """Return how many of some prompts are read now, given their tokens, the shortest first.

        The others wait for the next verification: they would hold the first tokens of those up for
        much longer than a verification takes at least.
        """
        seconds = self.verify.up_to(sum(num_unread))
        num_read = num_unread[0]
        for index, number in enumerate(num_unread[1:], start=1):
            if seconds[num_read + number] - seconds[num_read] > _MUCH_LONGER * seconds[1]:
                return index
            num_read += number
        return len(num_unread)

    def delays_reading(self, drafting_seconds: float) -> bool:
        """Return whether a draft call slows a reading of prompts at the same time down too much.

        That is by more than the rows that the running requests would have there without drafts.
        """
        curve = self._learnt.of_plain_batches
        rows = curve.at(self.num_running) - curve.at(1)
        return self.crowding * drafting_seconds > rows

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
            if self.num_alone == 0 and self.num_crowded:  # it held estimates only: measure afresh
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
        """Learn from a batch of drafts for which the drafter read that many tokens of prompts."""
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

        Compared with a batch of the usual size: others' drafts in it are no longer to wait for.
        """
        whole = self.draft.at(num_positions + round(self.other_positions))
        if whole > 0:
            share = min(seconds / whole, _MAX_WAIT)
            self.exposed_share += SMOOTHING * (share - self.exposed_share)

    def observe_overhead(self, seconds: float) -> None:
        """Learn from a step with a draft: its time that is neither drafting nor verification.

        A draft may wait for the verification under way. What that takes longer than usual, others'
        prompts take: they would be waited for without a draft, too.
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
