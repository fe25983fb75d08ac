"""Policies for draft lengths, and the choice of a drafter for requests that do not name one.

`paper` follows Eqs. 9-11 literally. They pin the length to its minimum after the first rejection:
both averages are linear with equal weights and start at 0, so the accepted one equals the generated
one only as long as every draft is accepted whole. With `cost_aware`, the default, the plan with the
most expected tokens per second determines the length of each draft: see `schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, Verdict

_TRIAL_SHARE = 0.02  # largest share of time that trials of other drafters may lose
_DECAY = 0.9  # decay per step of a request's rates; those of all requests decay by 0.98


class Policy(Protocol):
    """Chooses the lengths of one request's drafts, or leaves that to the scheduler."""

    @property
    def num_draft_tokens(self) -> int | None:
        """Length of the next draft; 0: no draft; None: the scheduler decides."""
        ...

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on a draft."""
        ...


class FixedLength:
    """Drafts of one fixed length (0: none), or of lengths chosen by the scheduler."""

    def __init__(self, num_draft_tokens: int | None) -> None:
        self.num_draft_tokens = num_draft_tokens

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        pass


class PaperLength:
    """The paper's controller, ADL.

    G <- (1 - rho) G + rho L_gen,  A <- (1 - rho) A + rho L_acc     (Eqs. 9, 10; G_0 = A_0 = 0)
    k <- clip(ceil(G + delta [A >= G]), k_min, k_max)               (Eq. 11; k_1 = k_max)
    """

    def __init__(self, config: DraftLengthConfig) -> None:
        self.num_draft_tokens = config.max_draft_tokens
        self._config = config
        self._generated = 0.0  # G
        self._accepted = 0.0  # A

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        config, rho = self._config, self._config.smoothing
        self._generated += rho * (draft.num_tokens_before_eos - self._generated)
        self._accepted += rho * (verdict.num_accepted_tokens - self._accepted)
        growth = config.growth if self._accepted >= self._generated else 0
        length = math.ceil(self._generated + growth)
        low, high = config.min_draft_tokens, config.max_draft_tokens
        self.num_draft_tokens = min(max(length, low), high)


def make_policy(params: SpeculationParams, config: DraftLengthConfig) -> Policy:
    """Return a new policy for one request."""
    if params.policy == "paper":
        return PaperLength(config)
    if params.policy == "cost_aware":
        return FixedLength(None)
    return FixedLength(params.num_draft_tokens if params.policy == "fixed" else 0)


@dataclass(slots=True)
class _Rate:
    """Decayed sums over the steps with one drafter."""

    num_tokens: float = 0.0
    seconds: float = 0.0
    num_steps: float = 0.0

    def add(self, num_tokens: float, seconds: float, num_steps: float, decay: float) -> None:
        self.num_tokens = decay * self.num_tokens + num_tokens
        self.seconds = decay * self.seconds + seconds
        self.num_steps = decay * self.num_steps + num_steps

    @property
    def tokens_per_second(self) -> float:
        """Infinite before the first step, so that every drafter is tried."""
        return self.num_tokens / self.seconds if self.seconds else float("inf")


class DrafterRates:
    """The rates of a coordinator's drafters, measured over all requests."""

    def __init__(self, names: Sequence[str]) -> None:
        self.rates = {name: _Rate() for name in names}
        # Steps since each drafter was last used, counted by the request of the latest step.
        self.num_steps_without = dict.fromkeys(names, 0)


class DrafterChoice:
    """Chooses the drafter of each step of one request: the one with the most tokens per second.

    The others are tried so rarely that all trials lose at most _TRIAL_SHARE of the time: a drafter
    that is nearly as good is tried often, a much slower one rarely.
    """

    def __init__(self, shared: DrafterRates) -> None:
        self._shared = shared
        self._own = {name: _Rate() for name in shared.rates}
        self._num_steps_without = dict(shared.num_steps_without)
        self._on_trial: str | None = None  # drafter whose next step is measured

    def choose(self) -> str:
        """Return the drafter of the next step."""
        if self._on_trial is None:
            rates = {name: self._with_prior(name) for name in self._own}
            best = max(rates, key=lambda name: rates[name].tokens_per_second)
            is_new = not rates[best].seconds
            self._on_trial = best if is_new else self._most_overdue(rates, rates[best])
            return self._on_trial or best
        return self._on_trial

    def observe(self, name: str, num_tokens: int, seconds: float) -> None:
        """Learn from a step with a drafter: the number of committed tokens, and the time."""
        self._own[name].add(num_tokens, seconds, 1, _DECAY)
        self._shared.rates[name].add(num_tokens, seconds, 1, 0.98)
        for other in self._own:
            self._num_steps_without[other] += 1
        self._num_steps_without[name] = 0
        self._shared.num_steps_without.update(self._num_steps_without)
        self._on_trial = None

    def _with_prior(self, name: str) -> _Rate:
        """Return the request's own sums, starting from four steps of the shared ones."""
        own, shared, found = self._own[name], self._shared.rates[name], _Rate()
        if shared.num_steps:
            share = min(4 / shared.num_steps, 1.0)
            found.add(
                shared.num_tokens * share, shared.seconds * share, shared.num_steps * share, 1
            )
        found.add(own.num_tokens, own.seconds, own.num_steps, 1)
        return found

    def _most_overdue(self, rates: Mapping[str, _Rate], best: _Rate) -> str | None:
        """Return the drafter whose trial is most overdue, in steps; None: none is due."""
        late = {
            name: self._num_steps_without[name] - self._pause(rate, best)
            for name, rate in rates.items()
            if rate is not best
        }
        name = max(late, key=late.__getitem__, default=None)
        return name if name is not None and late[name] >= 0 else None

    def _pause(self, rate: _Rate, best: _Rate) -> float:
        """Return the number of steps of the best drafter between two trials of another one."""
        slower = 1 - rate.tokens_per_second / best.tokens_per_second
        lost = slower * rate.seconds / rate.num_steps
        step = best.seconds / best.num_steps
        return lost * (len(self._own) - 1) / (_TRIAL_SHARE * step)
