"""Draft lengths for the most committed tokens per second, from measured acceptance and costs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from diffuspec.algorithm.draft_tree import depths, is_chain, prune_draft
from diffuspec.control.calibration import AcceptanceModel
from diffuspec.control.costs import StepCosts
from diffuspec.core.types import Draft, DraftTree, Verdict

# Pauses between trials, in steps times a trial's cost; each trial that does not pay doubles it.
_FIRST_PAUSE, _LAST_PAUSE = 4.0, 20.0
_MAX_TRIAL_TOKENS = 8
_TRIAL_SHARE = 0.02  # most time that trials may cost a batch of several without drafts
_GOOD_TRIAL = 1.5  # a trial that commits its cost times this is followed by another at once
_SMOOTHING = 0.3
_SHARED_DRAFTS = 12  # the first of each request, so that long ones do not rule shared statistics
_LENGTHS = (2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)


class Economics:
    """Costs, calibration and expected acceptance, shared by all requests of a coordinator."""

    def __init__(self, max_draft_tokens: int, crowding: float = 0.0) -> None:
        """`crowding` is assumed until it is measured; see StepCosts."""
        self.costs = StepCosts(crowding=crowding)
        self.acceptance = AcceptanceModel()
        self.lengths = [k for k in _LENGTHS if k < max_draft_tokens] + [max_draft_tokens]
        # Accepted tokens of a draft of each of these lengths, averaged over calibrated trees
        self.expected = [sum(0.85**depth for depth in range(1, k + 1)) for k in self.lengths]
        self.trial_credit = 0.0  # steps of plain decoding; no trial while it is below 0


class _Plan(NamedTuple):
    num_draft_tokens: int
    is_worth_it: bool
    cost: float = 1.0  # of the step, in steps of plain decoding


class CostAwareDraftLength:
    """Maximises the expected number of committed tokens per second.

    The number of nodes verified, the likeliest ones of a draft, maximises (1 + sum of their reach)
    / (time of the step). The draft length maximises the same ratio, with the reach by depth
    averaged over the last drafts. If plain decoding is faster than both, the request decodes
    without drafts except for trials. A trial is a short draft that is verified whole, to notice
    when drafts have become better. Statistics of other requests may not hold for this one, so
    trials are frequent at the start of a request, and a good trial is followed by another at once.
    The trials of all requests in a batch may cost no more than _TRIAL_SHARE of its time.
    """

    def __init__(self, economics: Economics) -> None:
        self._shared = economics
        self._acceptance = AcceptanceModel(economics.acceptance)
        self._lengths = economics.lengths
        self._expected = economics.expected
        self._num_nodes = 16.0
        self._kept_share = 1.0  # of a draft's expected tokens, after trimming
        self._nodes_per_token = 1.0  # nodes of a draft before trimming, by its length
        self._steps_without_draft = 0
        self._pause = 0.0  # before the next trial; 0: the first draft is always made
        self._trial_cost = 1.0  # of the last trial's step, in steps of plain decoding
        self._drafted = 0
        self._is_trial = False
        self._num_drafts = 0

    def num_draft_tokens(self, limit: int, num_unread: int = 0) -> int:
        self._is_trial = False
        if self._shared.costs.must_decode_plainly:
            return 0
        plan = self._plan(limit)
        if not plan.is_worth_it:
            return self._trial(plan, num_unread)
        self._pause = _FIRST_PAUSE
        return self._note(plan.num_draft_tokens)

    def pre_draft_length(self, limit: int) -> int:
        if self._shared.costs.must_decode_plainly:
            return 0
        plan = self._plan(limit)
        return plan.num_draft_tokens if plan.is_worth_it else 0

    def use_pre_draft(self, num_draft_tokens: int) -> None:
        self._is_trial = False
        self._pause = _FIRST_PAUSE
        self._note(num_draft_tokens)

    def _plan(self, limit: int) -> _Plan:
        """Return the length with the highest rate, and whether drafts beat plain decoding.

        The length is the best one given what other requests draft now. Whether to draft at all is
        decided as if all requests drafted alike. Where the others' drafts pay, a request drafts
        even if its own would not pay: without a draft it would wait for theirs.
        """
        costs = self._shared.costs
        lengths, expected = _up_to(limit, self._lengths, self._expected)
        draft, verify = costs.draft, costs.verify
        if not (draft.is_known and verify.is_known):
            return _Plan(min(limit, self._lengths[len(self._lengths) // 2]), True)
        num_nodes = round(self._num_nodes)
        others, other_tokens = round(costs.other_positions), costs.other_tokens
        share = costs.exposed_share
        drafting = draft.up_to(others + lengths[-1])
        fixed = verify.at(round(costs.other_rows) + 1 + num_nodes) + costs.overhead_seconds
        rates = [
            (other_tokens + 1 + accepted) / (share * drafting[others + k] + fixed)
            for k, accepted in zip(lengths, expected, strict=True)
        ]
        best = rates.index(max(rates))
        length = lengths[best]
        [price] = costs.of_drafting([length], [num_nodes])
        if 1 + self._kept_share * expected[best] >= price:
            return _Plan(length, True)
        _, of_all = _up_to(limit, self._lengths, self._shared.expected)
        of_most = 1 + self._kept_share * of_all[best]
        if of_most >= price and rates[best] >= self._rate_without():
            return _Plan(length, True)
        prices = costs.of_drafting(lengths, [round(self._nodes_per_token * k) for k in lengths])
        if any(1 + accepted >= price for accepted, price in zip(expected, prices, strict=True)):
            return _Plan(length, True)
        length = min(length, _MAX_TRIAL_TOKENS)
        return _Plan(length, False, costs.of_drafting([length], [length])[0])

    def _rate_without(self) -> float:
        """Return the tokens per second if this request alone does not draft."""
        costs = self._shared.costs
        seconds = costs.verify.at(round(costs.other_rows) + 1) + costs.overhead_seconds
        if others := round(costs.other_positions):
            seconds += costs.exposed_share * costs.draft.at(others)
        return (costs.other_tokens + 1) / seconds

    def trim(self, draft: Draft) -> Draft:
        if not draft.tree.num_nodes:
            return draft
        reach = self._acceptance.reach(draft)
        self._learn_expected(draft, reach)
        width = len(reach) / max(self._drafted, 1)
        self._nodes_per_token += _SMOOTHING * (width - self._nodes_per_token)
        accepted = [*accumulate(sorted(reach, reverse=True), initial=0.0)]  # by number of nodes
        num_nodes = self._best_num_nodes(accepted)
        kept = accepted[num_nodes] / (accepted[-1] or 1.0)
        self._kept_share += _SMOOTHING * (kept - self._kept_share)
        if self._is_trial:
            return draft
        self._num_nodes += _SMOOTHING * (num_nodes - self._num_nodes)
        if num_nodes == len(reach):
            return draft
        # Parents first: no node is likelier to be reached than its parent.
        order = sorted(range(len(reach)), key=reach.__getitem__, reverse=True)
        return prune_draft(draft, order[:num_nodes])

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        self._acceptance.observe(draft, verdict, is_shared=self._num_drafts < _SHARED_DRAFTS)
        self._num_drafts += 1
        if self._is_trial and 1 + verdict.num_accepted_tokens >= _GOOD_TRIAL * self._trial_cost:
            self._pause = 0.0
            self._shared.trial_credit = 0.0  # it has paid for itself

    def _trial(self, plan: _Plan, num_unread: int) -> int:
        """Return the length of a trial, or 0 during the pause before the next one."""
        shared = self._shared
        if shared.costs.num_running < 2:
            shared.trial_credit = 0.0  # the debt was to a batch of several
        if self._steps_without_draft < self._pause * plan.cost or shared.trial_credit < 0:
            self._steps_without_draft += 1
            shared.trial_credit = min(shared.trial_credit + _TRIAL_SHARE, 0.0)
            return 0
        length = plan.num_draft_tokens
        num_nodes = round(self._nodes_per_token * length)
        shared.trial_credit -= shared.costs.of_trial(length, num_nodes, num_unread)
        self._is_trial, self._trial_cost = True, plan.cost
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LAST_PAUSE)
        return self._note(length)

    def _note(self, num_draft_tokens: int) -> int:
        self._steps_without_draft = 0
        self._drafted = num_draft_tokens
        return num_draft_tokens

    def _best_num_nodes(self, accepted: Sequence[float]) -> int:
        """Return the number of nodes to verify; accepted[n]: expected tokens of n nodes."""
        costs, curve = self._shared.costs, self._shared.costs.verify
        most = len(accepted) - 1
        if not curve.is_known:
            return most
        rows = round(costs.other_rows) + 1
        verify = curve.up_to(rows + most)[rows : rows + most + 1]
        positions = round(costs.other_positions) + self._drafted
        spent = costs.exposed_share * costs.draft.at(positions) + costs.overhead_seconds
        base = costs.other_tokens + 1
        rates = [(base + n) / (one + spent) for n, one in zip(accepted, verify, strict=True)]
        return rates.index(max(rates))

    def _learn_expected(self, draft: Draft, reach: Sequence[float]) -> None:
        """Average the yield of each length, extrapolated geometrically past the draft's end."""
        most = self._lengths[-1]
        seen = _by_depth(draft.tree, reach, most)
        end = min(self._drafted, most)
        if draft.num_tokens_before_eos >= end > 0 and seen[end] > 0:
            ratio = min(seen[end] ** (1 / end), 0.99)
            seen[end:] = accumulate(repeat(ratio, most - end), mul, initial=seen[end])
        accepted = [*accumulate(seen)]
        self._expected = self._moved(self._expected, accepted, _SMOOTHING)
        if self._num_drafts < _SHARED_DRAFTS:
            self._shared.expected = self._moved(self._shared.expected, accepted, 0.02)

    def _moved(self, means: Sequence[float], accepted: Sequence[float], rate: float) -> list[float]:
        """Return the means of all lengths, moved towards the tokens of one more draft.

        accepted[k]: expected tokens of its first k depths.
        """
        lengths = zip(means, self._lengths, strict=True)
        return [mean + rate * (accepted[length] - mean) for mean, length in lengths]


def _by_depth(tree: DraftTree, reach: Sequence[float], max_depth: int) -> list[float]:
    """Return the expected accepted tokens at each depth, from 0 to `max_depth` or beyond."""
    rest = [0.0] * (max_depth - len(reach))
    if is_chain(tree):
        return [0.0, *reach, *rest]
    found = [0.0] * (1 + len(reach)) + rest
    for depth, probability in zip(depths(tree), reach, strict=True):
        found[depth] += probability
    return found


def _up_to(
    limit: int, lengths: Sequence[int], expected: Sequence[float]
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the lengths below a limit and the limit itself, with the expected tokens of each."""
    if limit >= lengths[-1]:
        return lengths, expected
    place = bisect_left(lengths, limit)
    ends, values = [0, *lengths], [0.0, *expected]
    share = (limit - ends[place]) / (ends[place + 1] - ends[place])
    at_limit = values[place] + share * (values[place + 1] - values[place])
    return [*lengths[:place], limit], [*expected[:place], at_limit]
