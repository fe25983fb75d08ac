"""The cost-aware controller with many requests in one batch, which share its cost."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.control.cost_aware import CostAwareDraftLength, Economics
from diffuspec.core.types import Draft
from tests.control.test_draft_length import NO_LIMIT, Run, World, verdict


@dataclass
class Crowd(World):
    """Requests in lockstep: drafted for in one batch, and verified in one."""

    num_requests: int = 8

    def best_rate(self) -> float:
        """Tokens per second if all draft the best constant length, or none drafts."""
        count = self.num_requests
        rates = [count / (self._verifying(count - 1) + self.overhead)]
        for k in range(1, 31):
            tokens = count * sum(self.probability**i for i in range(k + 1))
            verifying = self._verifying(count * (1 + k) - 1)
            rates.append(tokens / (self._drafting(count * k) + verifying + self.overhead))
        return max(rates)

    def run_all(self, shared: Economics, num_steps: int) -> Run:
        rng, run = random.Random(0), Run()
        everyone = [CostAwareDraftLength(shared) for _ in range(self.num_requests)]
        for _ in range(num_steps):
            lengths = [one.num_draft_tokens(NO_LIMIT) for one in everyone]
            seconds = self.overhead
            if num_drafting := sum(k > 0 for k in lengths):
                seconds += self._drafting(sum(lengths))
                shared.costs.observe_draft(sum(lengths), num_drafting, self._drafting(sum(lengths)))
            drafts, tokens = [], 0
            for one, k in zip(everyone, lengths, strict=True):
                whole = Draft(chain(range(k)), (math.log(self.probability),) * k, k)
                drafts.append(one.trim(whole) if k else whole)
            num_rows = sum(1 + draft.tree.num_nodes for draft in drafts)
            verdicts = [verdict(self._accepted(rng, draft.tree.num_nodes)) for draft in drafts]
            tokens = sum(1 + one.num_accepted_tokens for one in verdicts)
            seconds += (verifying := self._verifying(num_rows - 1))
            shared.costs.observe_verify(num_rows, self.num_requests, tokens, verifying)
            shared.costs.num_running = self.num_requests
            if num_drafting:
                shared.costs.observe_overhead(self.overhead)
            else:
                shared.costs.observe_plain_overhead(self.overhead)
            for one, draft, found in zip(everyone, drafts, verdicts, strict=True):
                if draft.tree.num_nodes:
                    one.observe(draft, found)
            shared.costs.observe_progress(tokens, seconds, is_plain=not num_drafting)
            run.lengths += lengths
            run.num_tokens += tokens
            run.seconds += seconds
        return run

    def _accepted(self, rng: random.Random, num_nodes: int) -> int:
        count = 0
        while count < num_nodes and rng.random() < self.probability:
            count += 1
        return count


CROWDS = {
    "as one": Crowd(0.8, num_requests=1),
    "good": Crowd(0.9),
    "bad": Crowd(0.3),
    "a call of the drafter is dear": Crowd(0.3, draft=(3e-2, 0), verify=(3e-2, 0)),
    "a call of the drafter is dear, and drafts are good": Crowd(
        0.85, draft=(3e-2, 0), verify=(3e-2, 0)
    ),
    "rows are dear": Crowd(0.6, verify=(1e-3, 2e-3), num_requests=16),
    "rows are dear to draft": Crowd(0.7, draft=(1e-3, 3e-3), num_requests=16),
    "very many": Crowd(0.8, verify=(9e-3, 4e-4), num_requests=64),
}


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_the_rate_of_a_batch_comes_near_the_best_that_all_of_it_could_do(crowd):
    shared = Economics(30)
    crowd.run_all(shared, 60)
    assert crowd.run_all(shared, 100).rate > 0.75 * crowd.best_rate()
