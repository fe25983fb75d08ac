"""Policies for draft lengths, and the choice of a drafter for requests that do not name one.

`paper` follows Eqs. 9-11 literally. They pin the length to its minimum after the first rejection:
both averages are linear with equal weights and start at 0, so the accepted one equals the generated
one only as long as every draft is accepted whole. With `cost_aware`, the default, the plan with the
most expected tokens per second determines the length of each draft: see `schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class _Steps(NamedTuple):
    """Decayed sums over the steps with one drafter."""

    num_tokens: float = 0.0
    seconds: float = 0.0
    number: float = 0.0

    def plus(self, others: _Steps, share: float) -> _Steps:
        """Return the sums with a share of those of other steps."""
        return _Steps(*[one + share * other for one, other in zip(self, others, strict=True)])


class DrafterRates:
    """The steps with each of a coordinator's drafters, over all requests."""

    def __init__(self, names: Sequence[str]) -> None:
        self.steps = {name: _Steps() for name in names}
        self.idle_seconds = dict.fromkeys(names, 0.0)  # time of steps since the latest with each


class DrafterChoice:
    """Chooses the drafter of each step of one request: the one with the most tokens per second.

    The longer a drafter has not been used, the better it is assumed to have become. So one with a
    share x of the best rate is tried whenever ln(1/x) / _TRIAL_SHARE of its steps would have fitted
    into the time. As a trial loses 1 - x of a step, which is less than ln(1/x), all trials together
    lose less than _TRIAL_SHARE of the time.
    """

    def __init__(self, shared: DrafterRates) -> None:
        self._shared = shared
        self._own = {name: _Steps() for name in shared.steps}
        self._chosen: str | None = None  # until a step with it is measured

    def choose(self) -> str:
        """Return the drafter of the next step."""
        if self._chosen is None:
            self._chosen = max(self._own, key=self._log_rate)
        return self._chosen

    def observe(self, name: str, num_tokens: int, seconds: float) -> None:
        """Learn from a step with a drafter: the number of committed tokens, and the time."""
        step = _Steps(num_tokens, seconds, 1)
        self._own[name] = step.plus(self._own[name], _DECAY)
        self._shared.steps[name] = step.plus(self._shared.steps[name], 0.98)
        idle = self._shared.idle_seconds
        for other in idle:
            idle[other] = idle[other] + seconds if other != name else 0.0
        self._chosen = None

    def _log_rate(self, name: str) -> float:
        """Logarithm of the tokens per second to hope for; infinite for an unknown drafter.

        The request's own sums start from four steps of the shared ones.
        """
        shared = self._shared.steps[name]
        found = self._own[name].plus(shared, min(4 / max(shared.number, 1), 1))
        if not found.num_tokens or not found.seconds:
            return math.inf
        num_idle = self._shared.idle_seconds[name] * found.number / found.seconds  # in its steps
        rise = _TRIAL_SHARE / max(len(self._own) - 1, 1) * num_idle
        return math.log(found.num_tokens / found.seconds) + rise
