"""Adaptive draft length (ADL): how many tokens to draft, and how many of them to verify.

`paper` is Eqs. 9-11 to the letter. They pin the length to its floor after the first rejection,
because both averages are linear with equal weights and start at 0, so that the accepted one reaches
the generated one only while every draft was accepted whole. `cost_aware` is ours: it maximises
expected committed tokens per second from measured acceptance and measured costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from diffuspec.algorithm.draft_tree import depths, prune_draft
from diffuspec.control.calibration import AcceptanceModel
from diffuspec.control.costs import StepCosts
from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import DraftLengthPolicy, SpeculationParams
from diffuspec.core.types import Draft, Verdict

_FIRST_PAUSE, _LAST_PAUSE = 4.0, 20.0  # between probes, in what one costs; doubled by each in vain
_PROBE_TOKENS = 8  # at most
_GOOD_PROBE = 1.5  # times what it cost: there may be more to gain
_SMOOTHING = 0.3
_SHARED_DRAFTS = 12  # of each request teach the others: a long request says no more than a short
_LENGTHS = (2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)


class DraftLength(Protocol):
    """Sizes one request's drafts. Knows nothing of what the tokens are."""

    def num_draft_tokens(self, limit: int) -> int:
        """Return the length of the next draft, at most limit (1 or more); 0: go without one."""
        ...

    def length_ahead(self, limit: int) -> int:
        """Return the length of a draft that is made ahead and may never be used; 0: none."""
        ...

    def take_ahead(self, num_draft_tokens: int) -> None:
        """The next draft is one made ahead, of this length."""
        ...

    def trim(self, draft: Draft) -> Draft:
        """Return the part of a draft that is worth verifying."""
        ...

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the outcome of a draft that was verified as trimmed."""
        ...


class FixedDraftLength:
    """Always the same length; 0 is plain decoding."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def num_draft_tokens(self, limit: int) -> int:
        return min(self._num_draft_tokens, limit)

    def length_ahead(self, limit: int) -> int:
        return min(self._num_draft_tokens, limit)

    def take_ahead(self, num_draft_tokens: int) -> None:
        pass

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        pass


class PaperDraftLength(FixedDraftLength):
    """The paper's controller.

    G <- (1 - rho) G + rho L_gen,  A <- (1 - rho) A + rho L_acc     (Eqs. 9, 10; G_0 = A_0 = 0)
    k <- clip(ceil(G + delta [A >= G]), k_min, k_max)               (Eq. 11; k_1 = k_max)
    """

    def __init__(self, config: DraftLengthConfig) -> None:
        super().__init__(config.max_draft_tokens)
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
        self._num_draft_tokens = min(max(length, low), high)


class Economics:
    """What every request of a coordinator shares: costs, calibration, typical survival."""

    def __init__(self, max_draft_tokens: int) -> None:
        self.costs = StepCosts()
        self.acceptance = AcceptanceModel()
        # P(the token at this depth is accepted), as the calibrated trees say, [max_draft_tokens]
        self.survival = np.power(0.85, np.arange(1, max_draft_tokens + 1, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class _Plan:
    num_draft_tokens: int
    is_worth_it: bool
    cost: float = 1.0  # of the step, in plain steps


class CostAwareDraftLength:
    """Maximise expected committed tokens per second.

    A draft is verified up to the number of nodes where (1 + sum of their reach) / (time of the
    step) is largest, the likeliest nodes first. The length is the one where the same ratio, with
    reach by depth averaged over the last drafts, is largest. When plain decoding beats both, the
    request goes without drafts, but for a probe now and then, which is verified whole: what is
    never verified is never seen to have become better. What others came to may not hold for this
    request: probes are frequent in its beginning, and a good one is followed by another.
    """

    def __init__(self, max_draft_tokens: int, economics: Economics) -> None:
        self._lengths = [k for k in _LENGTHS if k < max_draft_tokens] + [max_draft_tokens]
        self._shared = economics
        self._acceptance = AcceptanceModel(economics.acceptance)
        self._survival = economics.survival[:max_draft_tokens].copy()
        self._num_nodes = 16.0
        self._steps_without_draft = 0
        self._pause = 0.0  # until the next probe, in its costs; the first draft is always made
        self._probe_cost = 1.0  # of the last probe's step, in plain steps
        self._drafted = 0
        self._is_probe = False
        self._num_drafts = 0

    def num_draft_tokens(self, limit: int) -> int:
        self._is_probe = False
        plan = self._plan(limit)
        if not plan.is_worth_it:
            return self._probe(plan)
        self._pause = _FIRST_PAUSE
        return self._note(plan.num_draft_tokens)

    def length_ahead(self, limit: int) -> int:
        plan = self._plan(limit)
        return plan.num_draft_tokens if plan.is_worth_it else 0

    def take_ahead(self, num_draft_tokens: int) -> None:
        self._is_probe = False
        self._pause = _FIRST_PAUSE
        self._note(num_draft_tokens)

    def _plan(self, limit: int) -> _Plan:
        """Return the length of the highest rate, and whether it beats plain decoding."""
        costs = self._shared.costs
        longest = min(limit, self._lengths[-1])
        lengths = [k for k in self._lengths if k < longest] + [longest]
        if not (costs.draft.is_known and costs.verify.is_known):
            return _Plan(min(longest, self._lengths[len(self._lengths) // 2]), True)
        others = round(costs.other_positions)
        rows = round(costs.other_rows) + 1
        tokens = costs.other_tokens + 1 + np.cumsum(self._survival)
        draft = costs.exposed_share * costs.draft.seconds(others + longest)[others:]
        num_nodes = round(self._num_nodes)
        verify = costs.verify.seconds(rows + max(longest, num_nodes))[rows:]
        verify = verify + costs.overhead_seconds
        rates = [tokens[k - 1] / (draft[k] + verify[num_nodes]) for k in lengths]
        best = int(np.argmax(rates))
        length = lengths[best]
        plain = verify[0] + (draft[0] if others else 0.0)  # the others draft all the same
        is_worth_it = bool(rates[best] >= (costs.other_tokens + 1) / plain)
        if not is_worth_it:
            length = min(length, _PROBE_TOKENS)
        return _Plan(length, is_worth_it, float((draft[length] + verify[length]) / plain))

    def trim(self, draft: Draft) -> Draft:
        if not draft.tree.num_nodes:
            return draft
        reach = np.array(self._acceptance.reach(draft))
        self._learn_survival(draft, reach)
        if self._is_probe:
            return draft
        order = np.argsort(-reach, kind="stable")  # parents first: reach only falls
        num_nodes = self._best_num_nodes(reach[order])
        self._num_nodes += _SMOOTHING * (num_nodes - self._num_nodes)
        if num_nodes == draft.tree.num_nodes:
            return draft
        return prune_draft(draft, order[:num_nodes].tolist())

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        self._acceptance.observe(draft, verdict, is_shared=self._num_drafts < _SHARED_DRAFTS)
        self._num_drafts += 1
        if self._is_probe and 1 + verdict.num_accepted_tokens >= _GOOD_PROBE * self._probe_cost:
            self._pause = 0.0

    def _probe(self, plan: _Plan) -> int:
        """Return the length of a probe, or 0 while it is not time for one."""
        if self._steps_without_draft < self._pause * plan.cost:
            self._steps_without_draft += 1
            return 0
        self._is_probe, self._probe_cost = True, plan.cost
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LAST_PAUSE)
        return self._note(plan.num_draft_tokens)

    def _note(self, num_draft_tokens: int) -> int:
        self._steps_without_draft = 0
        self._drafted = num_draft_tokens
        return num_draft_tokens

    def _best_num_nodes(self, reach: NDArray[np.float64]) -> int:
        costs = self._shared.costs
        if not costs.verify.is_known:
            return len(reach)
        rows = round(costs.other_rows) + 1
        verify = costs.verify.seconds(rows + len(reach))[rows:]
        positions = round(costs.other_positions) + self._drafted
        spent = costs.exposed_share * costs.draft.at(positions) + costs.overhead_seconds
        tokens = costs.other_tokens + 1 + np.concatenate([[0.0], np.cumsum(reach)])
        return int(np.argmax(tokens / (verify + spent)))

    def _learn_survival(self, draft: Draft, reach: NDArray[np.float64]) -> None:
        """Average the reach by depth; past the draft's end it goes on falling as it fell."""
        size = len(self._survival)
        places = np.array(depths(draft.tree), np.int64) - 1
        seen = np.bincount(places, weights=reach, minlength=size)[:size]
        end = min(self._drafted, size)
        if end < size and draft.num_tokens_before_eos >= end and seen[end - 1] > 0:
            ratio = min(seen[end - 1] ** (1 / end), 0.99)
            seen[end:] = seen[end - 1] * ratio ** np.arange(1, size - end + 1)
        self._survival += _SMOOTHING * (seen - self._survival)
        if self._num_drafts < _SHARED_DRAFTS:
            shared = self._shared.survival[:size]
            shared += 0.02 * (seen - shared)


def make_draft_length(
    params: SpeculationParams, config: DraftLengthConfig, economics: Economics
) -> DraftLength:
    """Return a new controller for one request."""
    policy: DraftLengthPolicy = params.policy
    if policy == "paper":
        return PaperDraftLength(config)
    if policy == "cost_aware":
        return CostAwareDraftLength(config.max_draft_tokens, economics)
    return FixedDraftLength(params.num_draft_tokens if policy == "fixed" else 0)
