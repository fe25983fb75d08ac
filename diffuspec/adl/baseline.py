"""The guard: the gain or loss of drafts relative to plain decoding, under the present load.

Costs and acceptance are predictions. What they miss (a shared processor, a split batch, a slower
machine) shows in the time that all requests together take for their tokens. So that time is
compared with the time of plain decoding for as many tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

# Share of the time saved up for trials. With first drafts that lose, less than 3 % is lost.
_TRIAL_SHARE = 0.01
# consecutive plain steps until one counts: in the first ones the caches hold the drafter's weights
NUM_PLAIN = 3
_PLAIN_EVERY = 256  # drafted steps for each NUM_PLAIN plain ones: about _TRIAL_SHARE of the time
# A verification that takes 1.5 times the expected time, or as much less, may mean that the
# machine's speed has changed. After two in a row, and 16 drafted steps, plain decoding is measured.
_SURPRISE, _NUM_SURPRISES, _LEAST_SINCE = math.log(1.5), 2, 16
_MAX_WAITS = 8  # steps for which drafts are held back; other requests may still draft
# Plain steps of one request that drafts may lose at first, and maximum of gains saved for a run of
# bad drafts. With several requests both are divided by the square root of their number, like random
# fluctuations.
_FIRST_BALANCE, _MAX_BALANCE = 12.0, 60.0
_READING_DRAFTS = 12  # drafts of a short answer, which share the cost of reading its prompt
_MAX_CREDIT = 8.0  # plain steps that trials may save up, so that few are made at once


def _bucket(num_running: int) -> int:
    """Return the nearest power of two by ratio: 23 to 45 requests count as 32."""
    return (num_running * num_running).bit_length() // 2


@dataclass(slots=True)
class _Account:
    """Gains minus losses of one drafter under one load, in steps of plain decoding."""

    scale: float  # factor of balances: falls as more requests run
    balance: float = 0.0
    credit: float = 0.0  # plain steps saved up for trials
    debt: float = 0.0  # cost of prompts read, which the drafts to come pay off

    def add(self, steps: float) -> None:
        most = self.scale * _MAX_BALANCE
        self.balance = min(max(self.balance + steps, -most), most)

    @property
    def missing(self) -> float:
        """Plain steps that have to be saved before drafts resume; 0: they may go on."""
        return max(-self.scale * _FIRST_BALANCE - self.balance, 0.0)

    @property
    def is_stopped(self) -> bool:
        return self.missing > 0


@dataclass(slots=True)
class _Plain:
    """How recent the measurement of plain decoding is under one load."""

    num_measured: int = 0
    num_since: int = 0  # drafted steps since the last measurement
    num_waits: int = 0  # steps for which drafts were held back for a measurement
    held: list[Interval] = field(default_factory=list)  # surprising intervals, not compared yet


@dataclass(slots=True)
class Interval:
    """The time from one verdict to the next, and what all requests committed in this time.

    A plain step, in which nothing was drafted and no draft verified, has no cost for any drafter.
    """

    num_running: int
    seconds: float
    plain_seconds: float  # duration of a step of plain decoding for these requests
    base_seconds: float  # duration of this step without drafts: plain_seconds plus its prefill
    cost_seconds: Mapping[str, float] = field(default_factory=dict)  # predictions, by drafter
    accepted: Mapping[str, float] = field(default_factory=dict)  # drafted tokens, by drafter
    num_missing: int = 0  # running requests that were not verified
    # seconds of reading prompts, by drafter
    reading: Mapping[str, float] = field(default_factory=dict)
    is_whole: bool = True  # whether all running requests were verified, and no prompt was read
    num_steps: int = 1  # plain steps covered by the interval
    surprise: float = 0.0  # log ratio of the verification's actual to expected seconds


class Baseline:
    """Compares drafts with plain decoding, by drafter and power of two of the running requests.

    Drafts that have lost more than they gained stop until 1 % of the time has made up for the loss.
    While they may continue, that time is saved for trials of requests that are not expected to gain
    from drafts.
    """

    def __init__(self, drafters: Collection[str], first_after: int = _PLAIN_EVERY) -> None:
        """`drafters`: their names.

        first_after: drafted steps between the first two measurements of plain decoding under a
        load. The number doubles, up to _PLAIN_EVERY.
        """
        self._drafters = drafters
        self._first_after = first_after
        self._accounts: dict[tuple[str, int], _Account] = {}
        self._plain: dict[int, _Plain] = defaultdict(_Plain)
        self._num_plain = 0  # consecutive plain steps of all requests, up to now

    def _account(self, drafter: str, num_running: int) -> _Account:
        key = drafter, _bucket(num_running)
        found = self._accounts.get(key)
        if found is None:
            found = self._accounts[key] = _Account(num_running**-0.5)
        return found

    def allows(self, drafter: str, num_running: int) -> bool:
        """Return whether the guard lets requests draft; `choose_lengths` still decides how much."""
        return not self._account(drafter, num_running).is_stopped

    def steps_to_read(self, drafter: str, num_running: int) -> float:
        """Plain steps that reading prompts may take, even if no draft ever pays for them."""
        account = self._account(drafter, num_running)
        return account.balance + account.scale * _FIRST_BALANCE - account.debt

    def num_stopped_steps(self, drafter: str, num_running: int) -> float:
        """Plain steps until requests may draft again; 0: they may draft now."""
        return self._account(drafter, num_running).missing / _TRIAL_SHARE

    def saved_for_trials(self, drafter: str, num_running: int) -> float:
        """Plain steps saved up for trials; 0 while a trial is being paid off."""
        return max(self._account(drafter, num_running).credit, 0.0)

    def allows_trial(self, drafter: str, num_running: int, steps: float) -> bool:
        """Return whether a trial that costs this many plain steps may be made.

        One that costs more than can be saved up is paid off afterwards.
        """
        return self._account(drafter, num_running).credit >= min(steps, _MAX_CREDIT)

    def take_trial(self, drafter: str, num_running: int, steps: float) -> None:
        """Pay for a trial: what it is expected to lose does not count against other drafts."""
        account = self._account(drafter, num_running)
        account.credit = max(account.credit - steps, -_MAX_BALANCE)
        account.add(steps)

    def wants_plain(self, num_running: int) -> bool:
        """Return whether the next step should be a plain one of all requests, to be measured.

        Gives up while requests with their own draft lengths keep drafting.
        """
        plain = self._plain[_bucket(num_running)]
        doublings = min(max(plain.num_measured - 1, 0), _PLAIN_EVERY.bit_length())
        after = min(self._first_after << doublings, _PLAIN_EVERY)
        is_due = not plain.num_measured or plain.num_since >= after
        return (is_due or len(plain.held) >= _NUM_SURPRISES) and plain.num_waits < _MAX_WAITS

    def skip(self, num_running: int) -> None:
        """Count a step from which nothing can be learnt, so that the wait for a plain one ends."""
        self._num_plain = 0
        self._plain[_bucket(num_running)].num_waits += self.wants_plain(num_running)

    def observe(self, interval: Interval) -> bool:
        """Account for an interval; return whether it has measured plain decoding."""
        bucket = _bucket(interval.num_running)
        plain = self._plain[bucket]
        plain.num_waits += self.wants_plain(interval.num_running)
        if interval.cost_seconds:
            self._num_plain = 0
            plain.num_since += 1
            # plain decoding was not measured; wait for the next turn
            if plain.num_since >= 2 * _PLAIN_EVERY:
                plain.num_since = plain.num_waits = 0
            plain.held.append(interval)
            is_surprising = abs(interval.surprise) > _SURPRISE and plain.num_since >= _LEAST_SINCE
            if not is_surprising or plain.num_waits >= _MAX_WAITS:
                self._settle(plain)
            self._save(interval)
            return False
        self._num_plain = self._num_plain + interval.num_steps if interval.is_whole else 0
        is_measured = self._num_plain >= NUM_PLAIN
        if is_measured:
            self._settle(plain, interval.seconds / interval.plain_seconds)
            self._plain[bucket] = _Plain(plain.num_measured + 1)
        self._save(interval)
        return is_measured

    def _settle(self, plain: _Plain, slower: float = 1.0) -> None:
        """Compare the held intervals with plain steps.

        slower: ratio of the present time of plain steps to that expected when they were held.
        """
        for one in plain.held:
            self._compare(one, slower)
        plain.held = []

    def _compare(self, interval: Interval, slower: float) -> None:
        """Compare the gain of drafts with their cost."""
        step = slower * interval.plain_seconds
        extra = min(interval.seconds - slower * interval.base_seconds, _MAX_BALANCE * step)
        whole = sum(interval.cost_seconds.values())
        for drafter, cost in interval.cost_seconds.items():
            share = cost / whole if whole > 0 else 1 / len(interval.cost_seconds)
            gained = interval.accepted.get(drafter, 0.0) - share * interval.num_missing
            gained /= interval.num_running
            read = interval.reading.get(drafter, 0.0) / step
            account = self._account(drafter, interval.num_running)
            account.debt += read
            paid = account.debt / _READING_DRAFTS
            account.debt -= paid
            account.add(gained - share * extra / step + read - paid)

    def _save(self, interval: Interval) -> None:
        """Save up for trials: of drafters, and of lengths if a drafter does not draft."""
        steps = _TRIAL_SHARE * interval.seconds / interval.plain_seconds
        for drafter in self._drafters:
            account = self._account(drafter, interval.num_running)
            if account.is_stopped and drafter not in interval.cost_seconds:
                account.add(steps)
            elif not account.is_stopped:
                account.credit = min(account.credit + steps, _MAX_CREDIT)
