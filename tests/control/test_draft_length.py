"""The draft-length controllers, in simulations with known costs and acceptance."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.draft_tree import chain, validate
from diffuspec.control.cost_aware import CostAwareDraftLength, Economics
from diffuspec.control.draft_length import FixedDraftLength, PaperDraftLength, make_draft_length
from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, DraftTree, Verdict

NO_LIMIT = 1000
PAPER = DraftLengthConfig()


def verdict(num_accepted: int) -> Verdict:
    return Verdict((1,) * (num_accepted + 1), tuple(range(num_accepted)))


def raw_draft(num_tokens_before_eos: int) -> Draft:
    return Draft(chain(range(max(num_tokens_before_eos, 1))), (), num_tokens_before_eos)


def lengths_after(controller: PaperDraftLength, outcomes: list[tuple[int, int]]) -> list[int]:
    """The lengths chosen before and after (tokens before EOS, tokens accepted) of each step."""
    lengths = [controller.num_draft_tokens(NO_LIMIT)]
    for generated, accepted in outcomes:
        controller.observe(raw_draft(generated), verdict(accepted))
        lengths.append(controller.num_draft_tokens(NO_LIMIT))
    return lengths


# ---- the paper's controller (Eqs. 9-11)


def test_the_paper_drafts_30_tokens_then_always_20_after_a_rejection():
    outcomes = [(30, 3)] + [(20, 20)] * 20
    assert lengths_after(PaperDraftLength(PAPER), outcomes) == [30] + [20] * 21


def test_the_paper_drafts_long_while_everything_is_accepted():
    controller = PaperDraftLength(PAPER)
    lengths = []
    for _ in range(8):
        k = controller.num_draft_tokens(NO_LIMIT)
        controller.observe(raw_draft(k), verdict(k))
        lengths.append(k)
    # G is 15, then 20, 25, 27.5, ...: with delta the length is clipped at k_max from the start.
    assert lengths == [30, 25] + [30] * 6


def test_the_ceiling_is_taken_and_not_the_floor():
    config = DraftLengthConfig(min_draft_tokens=1, max_draft_tokens=30, growth=0)
    assert lengths_after(PaperDraftLength(config), [(5, 5)])[-1] == 3  # ceil(2.5)


def test_the_length_is_clipped_on_both_sides():
    config = DraftLengthConfig(min_draft_tokens=4, max_draft_tokens=6, growth=10)
    assert lengths_after(PaperDraftLength(config), [(0, 0), (0, 0)]) == [6, 6, 6]
    assert lengths_after(PaperDraftLength(config), [(2, 0), (0, 0)]) == [6, 4, 4]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_the_paper_follows_its_equations(outcomes):
    outcomes = [(generated, min(generated, accepted)) for generated, accepted in outcomes]
    generated_mean = accepted_mean = 0.0
    expected = [30]
    for generated, accepted in outcomes:
        generated_mean = 0.5 * generated_mean + 0.5 * generated
        accepted_mean = 0.5 * accepted_mean + 0.5 * accepted
        growth = 10 if accepted_mean >= generated_mean else 0
        expected.append(min(max(math.ceil(generated_mean + growth), 20), 30))
    assert lengths_after(PaperDraftLength(PAPER), outcomes) == expected


@pytest.mark.parametrize("policy", ["paper", "cost_aware", "fixed", "off"])
def test_no_policy_drafts_past_the_limit(policy):
    params = SpeculationParams(policy=policy, num_draft_tokens=7)
    controller = make_draft_length(params, PAPER, Economics(30))
    lengths = [controller.num_draft_tokens(limit) for limit in (1, 3, 7, NO_LIMIT)]
    assert all(k <= limit for k, limit in zip(lengths, (1, 3, 7, 30), strict=True))
    assert (max(lengths) == 0) is (policy == "off")


@pytest.mark.parametrize("policy", ["paper", "cost_aware", "fixed"])
def test_the_pre_draft_length_is_the_next_length_and_asking_changes_nothing(policy):
    params = SpeculationParams(policy=policy, num_draft_tokens=7)
    controller = make_draft_length(params, PAPER, Economics(30))
    ahead = [controller.pre_draft_length(limit) for limit in (1, 3, NO_LIMIT, NO_LIMIT)]
    assert ahead[:2] == [1, 3] and ahead[2] == ahead[3] == controller.num_draft_tokens(NO_LIMIT)
    controller.use_pre_draft(3)
    assert controller.pre_draft_length(NO_LIMIT) == ahead[3]


def test_a_fixed_length_stays_and_trims_nothing():
    controller = FixedDraftLength(5)
    draft = raw_draft(5)
    assert controller.trim(draft) is draft
    controller.observe(draft, verdict(0))
    assert controller.num_draft_tokens(NO_LIMIT) == 5


# ---- the cost-aware controller: how much of a draft to verify


def verified_alone(points: list[tuple[int, float]]) -> Economics:
    """Economics with these costs of verification, (rows, seconds), each measured 60 times."""
    economics = Economics(30)
    for rows, seconds in points * 60:
        economics.costs.observe_verify(rows, 1, 1, seconds)
    return economics


@st.composite
def a_tree(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(1, 9))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    confidences = tuple(draw(st.floats(-4, 0)) for _ in range(size))
    return Draft(DraftTree(tuple(range(size)), parents), confidences, size)


def best_by_brute_force(draft: Draft, economics: Economics) -> float:
    """The highest rate over all parent-closed sets of nodes."""
    reach = economics.acceptance.reach(draft)
    seconds = economics.costs.verify.up_to(1 + draft.tree.num_nodes)
    best = 0.0
    for subset in range(2**draft.tree.num_nodes):
        nodes = [node for node in range(draft.tree.num_nodes) if subset >> node & 1]
        if all(draft.tree.parents[node] in (-1, *nodes) for node in nodes):
            tokens = 1 + sum(reach[node] for node in nodes)
            best = max(best, tokens / seconds[1 + len(nodes)])
    return best


@settings(max_examples=60)
@given(
    a_tree(),
    st.lists(st.tuples(st.sampled_from([1, 3, 6, 11]), st.floats(1e-3, 1.0)), min_size=1),
)
def test_the_verified_part_of_a_draft_has_the_highest_rate(draft, points):
    economics = verified_alone(points)
    expected = best_by_brute_force(draft, economics)
    trimmed = CostAwareDraftLength(economics).trim(draft)
    validate(trimmed.tree)
    tokens = 1 + sum(economics.acceptance.reach(trimmed))
    rate = tokens / economics.costs.verify.at(1 + trimmed.tree.num_nodes)
    assert rate == pytest.approx(expected, rel=1e-9)


def test_the_whole_draft_is_verified_before_any_cost_is_measured():
    draft = raw_draft(9)
    draft = Draft(draft.tree, (-3.0,) * 9, 9)
    assert CostAwareDraftLength(Economics(30)).trim(draft) is draft


# ---- the cost-aware controller: how much to draft


@dataclass
class World:
    """Every drafted token is right with one probability; costs are straight lines."""

    probability: float
    confidence: float | None = None  # the drafter's own; None: the true probability
    draft: tuple[float, float] = (3e-3, 5e-5)  # seconds, seconds per token
    verify: tuple[float, float] = (3e-3, 2e-4)
    overhead: float = 5e-4

    def best_rate(self) -> float:
        """Tokens per second of the best constant draft length, no drafts included."""
        rates = [1 / (self._verifying(0) + self.overhead)]
        for k in range(1, 31):
            tokens = sum(self.probability**i for i in range(k + 1))
            rates.append(tokens / (self._drafting(k) + self._verifying(k) + self.overhead))
        return max(rates)

    def run(self, controller: CostAwareDraftLength, shared: Economics, num_steps: int) -> Run:
        rng = random.Random(0)
        run = Run()
        for _ in range(num_steps):
            k = controller.num_draft_tokens(NO_LIMIT)
            num_nodes = accepted = 0
            seconds = self.overhead
            if k:
                seconds += (drafting := self._drafting(k) * rng.lognormvariate(0, 0.1))
                shared.costs.observe_draft(k, 1, drafting)
                confidence = math.log(self.confidence or self.probability)
                draft = controller.trim(Draft(chain(range(k)), (confidence,) * k, k))
                num_nodes = draft.tree.num_nodes
                while accepted < num_nodes and rng.random() < self.probability:
                    accepted += 1
            seconds += (verifying := self._verifying(num_nodes) * rng.lognormvariate(0, 0.1))
            shared.costs.observe_verify(1 + num_nodes, 1, 1 + accepted, verifying)
            if k:
                shared.costs.observe_overhead(self.overhead)
            else:
                shared.costs.observe_plain_overhead(self.overhead)
            if k:
                controller.observe(draft, verdict(accepted))
            run.lengths.append(k)
            run.num_tokens += 1 + accepted
            run.seconds += seconds
        return run

    def _drafting(self, num_tokens: int) -> float:
        return self.draft[0] + self.draft[1] * num_tokens

    def _verifying(self, num_nodes: int) -> float:
        return self.verify[0] + self.verify[1] * (1 + num_nodes)


class Run:
    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.num_tokens = 0
        self.seconds = 0.0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


WORLDS = {
    "good": World(0.9),
    "middling": World(0.7),
    "bad": World(0.3),
    "useless": World(0.02),
    "nearly perfect": World(0.99),
    "overconfident": World(0.3, confidence=0.97),
    "too modest": World(0.95, confidence=0.3),
    "verification is free": World(0.8, verify=(3e-3, 0)),
    "verification is dear": World(0.7, verify=(1e-3, 2e-3)),
    "drafting is free": World(0.8, draft=(1e-6, 0)),
    "drafting is dear": World(0.8, draft=(3e-2, 1e-4)),
    "long drafts are dear": World(0.8, draft=(1e-3, 1e-3)),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_the_rate_comes_near_that_of_the_best_constant_length(world):
    shared = Economics(30)
    first = world.run(CostAwareDraftLength(shared), shared, num_steps=300)
    second = world.run(CostAwareDraftLength(shared), shared, num_steps=600)
    assert first.rate > 0.88 * world.best_rate(), "while it learns"
    assert second.rate > 0.9 * world.best_rate(), "when it knows"


def test_drafts_are_long_if_further_tokens_cost_nothing():
    shared = Economics(30)
    world = World(0.9, draft=(1e-3, 0), verify=(5e-3, 0))
    run = world.run(CostAwareDraftLength(shared), shared, num_steps=200)
    assert np.mean(run.lengths[-50:]) > 20


def test_useless_drafts_stop_except_for_trials():
    shared = Economics(30)
    world = World(0.02, confidence=0.9)
    run = world.run(CostAwareDraftLength(shared), shared, num_steps=400)
    tried = [step for step, k in enumerate(run.lengths) if k and step > 50]
    assert 3 <= len(tried) <= 20
    assert min(np.diff(tried)) > 16


def test_trials_notice_that_drafts_have_become_good():
    shared = Economics(30)
    controller = CostAwareDraftLength(shared)
    World(0.02, confidence=0.9).run(controller, shared, num_steps=300)
    good = World(0.95, confidence=0.9)
    good.run(controller, shared, num_steps=600)
    assert good.run(controller, shared, num_steps=100).rate > 0.85 * good.best_rate()


def test_a_new_request_gets_trials_after_one_with_useless_drafts():
    shared = Economics(30)
    World(0.02, confidence=0.9).run(CostAwareDraftLength(shared), shared, num_steps=300)
    good = World(0.95, confidence=0.9)
    run = good.run(CostAwareDraftLength(shared), shared, num_steps=50)
    assert run.rate > 0.75 * good.best_rate()


def test_trials_are_frequent_at_first_and_a_good_one_leads_to_more():
    shared = Economics(30)
    useless = World(0.02, confidence=0.9)
    for _ in range(5):
        useless.run(CostAwareDraftLength(shared), shared, num_steps=100)
    run = useless.run(CostAwareDraftLength(shared), shared, num_steps=100)
    tried = np.flatnonzero(run.lengths)
    assert tried[0] == 0 and 3 <= len(tried) <= 6
    assert np.all(np.diff(np.diff(tried)) >= 0), "ever rarer"
    good = World(0.9, confidence=0.9)
    run = good.run(CostAwareDraftLength(shared), shared, num_steps=80)
    assert run.rate > 0.7 * good.best_rate()


def after_useless_drafts() -> Economics:
    shared = Economics(30)
    for _ in range(5):
        useless = World(0.02, confidence=0.9)
        useless.run(CostAwareDraftLength(shared), shared, num_steps=100)
    return shared


def test_what_trials_cost_a_batch_is_not_owed_by_those_that_come_after_it():
    shared, good = after_useless_drafts(), World(0.9, confidence=0.9)
    shared.trial_credit = -50.0
    run = good.run(CostAwareDraftLength(shared), shared, num_steps=80)
    assert run.rate > 0.7 * good.best_rate()


def test_a_good_trial_in_a_batch_leads_to_another_at_once():
    shared = after_useless_drafts()
    shared.costs.num_running = 8
    for _ in range(3):
        shared.costs.observe_progress(8, 0.01, is_plain=True)
    controller = CostAwareDraftLength(shared)
    for _ in range(2):
        length = controller.num_draft_tokens(NO_LIMIT)
        assert length > 0 > shared.trial_credit
        controller.observe(
            controller.trim(Draft(chain(range(length)), (-0.1,) * length, length)), verdict(length)
        )
    another = CostAwareDraftLength(shared)
    shared.trial_credit = -1.0
    assert another.num_draft_tokens(NO_LIMIT) == 0


def a_batch_of(num_requests: int) -> Economics:
    """Economics after many batches of num_requests requests, with linear costs."""
    economics = Economics(30)
    for size in (1, 4, 16, 31) * 30:
        rows = positions = size * num_requests
        verifying, drafting = 2e-2 + 2e-4 * rows, 2e-2 + 1e-4 * positions
        economics.costs.observe_verify(rows, num_requests, 3 * num_requests, verifying)
        economics.costs.observe_draft(positions, num_requests, drafting)
    return economics


def test_a_full_batch_drafts_and_verifies_less():
    draft = Draft(chain(range(30)), (math.log(0.85),) * 30, 30)
    chosen = []
    for num_requests in (1, 8):
        controller = CostAwareDraftLength(a_batch_of(num_requests))
        num_draft_tokens = controller.num_draft_tokens(NO_LIMIT)
        chosen.append((num_draft_tokens, controller.trim(draft).tree.num_nodes))
    (k_alone, nodes_alone), (k_full, nodes_full) = chosen
    assert k_full < k_alone and nodes_full < nodes_alone


def test_the_end_of_a_request_does_not_make_others_draft_less():
    economics = a_batch_of(1)
    before = economics.expected
    confident = math.log(0.97)
    for limit in (3, 2, 1):
        controller = CostAwareDraftLength(economics)
        k = controller.num_draft_tokens(limit)
        controller.trim(Draft(chain(range(k)), (confident,) * k, k))
    assert all(now > 0.9 * then for now, then in zip(economics.expected, before, strict=True))


def test_drafts_get_shorter_if_the_drafter_ends_them_early():
    controller = CostAwareDraftLength(a_batch_of(1))
    lengths = [controller.num_draft_tokens(NO_LIMIT)]
    for _ in range(8):
        length = lengths[-1] // 2
        controller.trim(Draft(chain(range(length)), (-0.01,) * length, length))
        lengths.append(controller.num_draft_tokens(NO_LIMIT))
    assert lengths[-1] < lengths[0]


def test_drafts_that_are_not_waited_for_are_longer():
    chosen = []
    for exposed in (1.0, 0.0):
        economics = a_batch_of(1)
        for size in (1, 16, 30) * 60:
            economics.costs.observe_draft(size, 1, 1e-3 + 5e-3 * size)
        economics.costs.exposed_share = exposed
        chosen.append(CostAwareDraftLength(economics).num_draft_tokens(NO_LIMIT))
    assert chosen[0] < chosen[1]


def test_there_are_no_pre_drafts_if_plain_decoding_is_faster():
    economics = a_batch_of(1)
    economics.expected = [1e-3 * length for length in economics.lengths]
    controller = CostAwareDraftLength(economics)
    assert controller.pre_draft_length(NO_LIMIT) == 0
    assert controller.num_draft_tokens(NO_LIMIT) > 0, "a request's first draft is always made"
    assert controller.num_draft_tokens(NO_LIMIT) == 0
