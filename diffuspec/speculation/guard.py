"""The guard: the gain or loss of drafts relative to plain decoding, under the present load.

Costs and acceptance are predictions. What they miss (a shared processor, a split batch, a slower
machine) shows in the time that all requests together take for their tokens. So that time is
compared with the time of plain decoding for as many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

EXPLORATION_SHARE = 0.01  # largest share of the time for exploration steps
# consecutive plain steps until one counts: in the first ones the caches hold the drafter's weights
NUM_PLAIN = 3
_PLAIN_EVERY = 256  # drafted steps for each NUM_PLAIN plain ones: about 1 % of the time
# A verification that takes 1.5 times the expected time, or as much less, says more of the machine
# than of drafts. After two in a row plain decoding is measured.
_SURPRISE, _NUM_SURPRISES = math.log(1.5), 2
_MAX_WAITS = 8  # steps for which drafts are held back; other requests may still draft
# Plain steps of one request that drafts may lose at first, and most of the gains that are saved for
# a run of bad drafts. With several requests both are divided by the square root of their number,
# like random fluctuations.
_FIRST_BALANCE, _MAX_BALANCE = 12.0, 60.0


def _bucket(num_running: int) -> int:
    """Return the nearest power of two by ratio: 23 to 45 requests count as 32."""
    return (num_running * num_running).bit_length() // 2


def _scale(num_running: int) -> float:
    """Return the factor of balances, which falls as more requests run."""
    return 1 / math.sqrt(num_running)


class _Account(NamedTuple):
    """The record of one drafter under one load, in steps of plain decoding."""

    balance: float = 0.0  # gains minus losses
    num_since: float = 0.0  # since the latest exploration step


class _Plain(NamedTuple):
    """How recent the measurement of plain decoding is under one load."""

    num_measured: int = 0
    num_since: int = 0  # drafted steps since then
    num_waits: int = 0  # steps for which drafts were held back for a measurement
    num_surprises: int = 0  # surprising verifications in a row


@dataclass(frozen=True, slots=True)
class Interval:
    """The time from one verdict to the next, and what all requests committed in this time.

    A plain step, in which nothing was drafted and no draft verified, has no cost for any drafter.
    """

    num_running: int
    seconds: float
    plain_seconds: float  # duration of a step of plain decoding for these requests
    base_seconds: float  # duration of this step without drafts: plain_seconds plus all reading
    cost_seconds: Mapping[str, float] = field(default_factory=dict)  # predictions, by drafter
    accepted: Mapping[str, float] = field(default_factory=dict)  # drafted tokens, by drafter
    num_missing: int = 0  # running requests that were not verified
    is_whole: bool = True  # whether all running requests were verified, and no prompt was read
    num_steps: int = 1  # plain steps covered by the interval
    surprise: float = 0.0  # log ratio of the verification's actual to expected seconds
    explores: bool = False  # whether a draft was verified that was not expected to pay


@dataclass(frozen=True, slots=True)
class SpeculationGuard:
    """Compares drafts with plain decoding, by drafter and power of two of the running requests.

    Drafts that have lost more than they gained stop until 1 % of the time has made up for the loss.
    While they may continue, as much time goes into exploration: drafts that are not expected to
    pay. A frozen value: what is observed yields a new one.
    """

    drafters: tuple[str, ...] = ()  # their names
    # drafted steps between the first two measurements of plain decoding under a load; the number
    # doubles, up to _PLAIN_EVERY
    first_after: int = _PLAIN_EVERY
    _accounts: Mapping[tuple[str, int], _Account] = field(default_factory=dict)
    _plain: Mapping[int, _Plain] = field(default_factory=dict)
    _num_plain: int = 0  # consecutive plain steps of all requests, up to now

    def _account(self, drafter: str, num_running: int) -> _Account:
        return self._accounts.get((drafter, _bucket(num_running)), _Account())

    def _plain_of(self, num_running: int) -> _Plain:
        return self._plain.get(_bucket(num_running), _Plain())

    def num_stopped_steps(self, drafter: str, num_running: int) -> float:
        """Plain steps until requests may draft again; 0: they may draft now."""
        deficit = (
            -_FIRST_BALANCE * _scale(num_running) - self._account(drafter, num_running).balance
        )
        return max(deficit, 0.0) / EXPLORATION_SHARE

    def may_explore(self, drafter: str, num_running: int, steps: float) -> bool:
        """Return whether an exploration step that costs this many plain steps may be made."""
        num_since = self._account(drafter, num_running).num_since
        return EXPLORATION_SHARE * num_since >= steps

    def wants_plain(self, num_running: int) -> bool:
        """Return whether the next step should be a plain one of all requests, to be measured.

        Gives up while requests with their own draft lengths keep drafting.
        """
        plain = self._plain_of(num_running)
        doublings = min(max(plain.num_measured - 1, 0), _PLAIN_EVERY.bit_length())
        after = min(self.first_after << doublings, _PLAIN_EVERY)
        is_due = not plain.num_measured or plain.num_since >= after
        return (is_due or plain.num_surprises >= _NUM_SURPRISES) and plain.num_waits < _MAX_WAITS

    def explore(self, drafter: str, num_running: int) -> SpeculationGuard:
        """Record that an exploration step begins: the time to the next one starts now."""
        account = self._account(drafter, num_running)._replace(num_since=0.0)
        key = drafter, _bucket(num_running)
        return replace(self, _accounts={**self._accounts, key: account})

    def skip(self, num_running: int) -> SpeculationGuard:
        """Count a step from which nothing can be learnt, so that the wait for a plain one ends."""
        plain = {**self._plain, _bucket(num_running): self._waited(num_running)}
        return replace(self, _plain=plain, _num_plain=0)

    def observe(self, interval: Interval) -> tuple[SpeculationGuard, bool]:
        """Account for an interval; also return whether it has measured plain decoding."""
        number = interval.num_running
        plain, num_plain = self._waited(number), 0
        if interval.cost_seconds:
            accounts, plain = self._compared(interval), _after_draft(plain, interval)
        else:
            accounts = self._saved(interval)
            num_plain = self._num_plain + interval.num_steps if interval.is_whole else 0
        is_measured = num_plain >= NUM_PLAIN
        if is_measured:
            plain = _Plain(plain.num_measured + 1)
        known = {**self._plain, _bucket(number): plain}
        guard = SpeculationGuard(self.drafters, self.first_after, accounts, known, num_plain)
        return guard, is_measured

    def _waited(self, num_running: int) -> _Plain:
        """Return the measurement of plain decoding, after another step if that waits for it."""
        plain = self._plain_of(num_running)
        return plain._replace(num_waits=plain.num_waits + self.wants_plain(num_running))

    def _compared(self, interval: Interval) -> Mapping[tuple[str, int], _Account]:
        """Return the accounts after comparing the gain of drafts with their cost."""
        # A machine that is suddenly slower, or faster, is so for plain steps, too.
        is_surprising = abs(interval.surprise) > _SURPRISE
        slower = math.exp(interval.surprise) if is_surprising else 1.0
        step = slower * interval.plain_seconds
        number = interval.num_running
        most = _MAX_BALANCE * _scale(number)
        extra = min(interval.seconds - slower * interval.base_seconds, _MAX_BALANCE * step)
        whole = sum(interval.cost_seconds.values())
        accounts = dict(self._saved(interval))
        if interval.explores:  # its loss was agreed to
            return accounts
        for drafter, cost in interval.cost_seconds.items():
            account = accounts[drafter, _bucket(number)]
            share = cost / whole if whole > 0 else 1 / len(interval.cost_seconds)
            gained = interval.accepted.get(drafter, 0.0) - share * interval.num_missing
            balance = account.balance + gained / number - share * extra / step
            balance = min(max(balance, -most), most)
            accounts[drafter, _bucket(number)] = account._replace(balance=balance)
        return accounts

    def _saved(self, interval: Interval) -> Mapping[tuple[str, int], _Account]:
        """Return the accounts after the time of an interval, 1 % of which makes up for losses."""
        steps, number = interval.seconds / interval.plain_seconds, interval.num_running
        accounts = dict(self._accounts)
        for name in self.drafters:
            balance, num_since = self._account(name, number)
            if name not in interval.cost_seconds and self.num_stopped_steps(name, number):
                balance += EXPLORATION_SHARE * steps
            accounts[name, _bucket(number)] = _Account(balance, num_since + steps)
        return accounts


def _after_draft(plain: _Plain, interval: Interval) -> _Plain:
    num_since, num_waits = plain.num_since + 1, plain.num_waits
    # plain decoding was not measured; wait for the next turn
    if num_since >= 2 * _PLAIN_EVERY:
        num_since = num_waits = 0
    num_surprises = plain.num_surprises + 1 if abs(interval.surprise) > _SURPRISE else 0
    return _Plain(plain.num_measured, num_since, num_waits, num_surprises)
