"""Chooses between several drafters: asks the one that commits the most tokens per second.

A bandit over measured rates. A request's own averages decay from step to step and begin with those
of the requests before it. The drafter with the highest rate is asked. Each of the others is tried
now and then, so rarely that all trials together lose only a small share of the time: one that is
nearly as good is tried often, a much slower one rarely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_DECAY = 0.9  # of a request's own sums, per step with the drafter
_SHARED_DECAY = 0.98  # of the sums of all requests
_PRIOR_STEPS = 4.0  # weight of the shared sums in a request's own
_TRIAL_SHARE = 0.05  # most of the time that trials may lose
_MAX_PAUSE = 400.0  # steps without a drafter before it is tried, however slow it was


@dataclass(slots=True)
class _Sums:
    """Decayed sums over the steps with one drafter."""

    num_tokens: float = 0.0
    seconds: float = 0.0
    num_steps: float = 0.0

    def add(self, num_tokens: float, seconds: float, num_steps: float, decay: float) -> None:
        self.num_tokens = decay * self.num_tokens + num_tokens
        self.seconds = decay * self.seconds + seconds
        self.num_steps = decay * self.num_steps + num_steps

    @property
    def rate(self) -> float:
        """Tokens per second; infinite before the first step, so that every drafter is tried."""
        return self.num_tokens / self.seconds if self.seconds else float("inf")


class DrafterRates:
    """What all requests of a coordinator have measured of its drafters."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.sums = {name: _Sums() for name in names}
        # Steps since each drafter was used last, counted by the request that took the latest step.
        self.num_steps_without = dict.fromkeys(names, 0)


class DrafterChoice:
    """Chooses the drafter of each step of one request."""

    def __init__(self, shared: DrafterRates) -> None:
        self._shared = shared
        self._own = {name: _Sums() for name in shared.names}
        self._num_steps_without = dict(shared.num_steps_without)
        self._on_trial: str | None = None  # until a step with it was measured

    def choose(self) -> str:
        """Return the drafter of the coming step."""
        if self._on_trial is None:
            sums = {name: self._with_prior(name) for name in self._shared.names}
            best = max(sums, key=lambda name: sums[name].rate)
            if not sums[best].seconds:
                self._on_trial = best
            else:
                self._on_trial = self._find_due(sums, sums[best])
            return self._on_trial or best
        return self._on_trial

    def observe(self, name: str, num_tokens: int, seconds: float) -> None:
        """Learn from a step with a drafter: how many tokens it committed, in what time."""
        self._own[name].add(num_tokens, seconds, 1, _DECAY)
        self._shared.sums[name].add(num_tokens, seconds, 1, _SHARED_DECAY)
        for other in self._shared.names:
            self._num_steps_without[other] += 1
        self._num_steps_without[name] = 0
        self._shared.num_steps_without.update(self._num_steps_without)
        self._on_trial = None

    def _with_prior(self, name: str) -> _Sums:
        """Return the request's own sums, begun with _PRIOR_STEPS of the shared ones."""
        own, shared, found = self._own[name], self._shared.sums[name], _Sums()
        if shared.num_steps:
            share = min(_PRIOR_STEPS / shared.num_steps, 1.0)
            seconds, num_steps = shared.seconds * share, shared.num_steps * share
            found.add(shared.num_tokens * share, seconds, num_steps, 1)
        found.add(own.num_tokens, own.seconds, own.num_steps, 1)
        return found

    def _find_due(self, sums: Mapping[str, _Sums], best: _Sums) -> str | None:
        """Return the drafter whose trial is overdue by the most steps; None: none is due."""
        late = {
            name: self._num_steps_without[name] - self._pause(one, best)
            for name, one in sums.items()
            if one is not best
        }
        name = max(late, key=late.__getitem__, default=None)
        return name if name is not None and late[name] >= 0 else None

    def _pause(self, one: _Sums, best: _Sums) -> float:
        """Return the steps of the best drafter between two trials of another."""
        lost = (1 - one.rate / best.rate) * one.seconds / one.num_steps
        step = best.seconds / best.num_steps
        return min(lost * (len(self._own) - 1) / (_TRIAL_SHARE * step), _MAX_PAUSE)
