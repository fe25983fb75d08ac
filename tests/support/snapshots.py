"""States of a coordinator at one moment, for tests of its schedule: nothing here runs or waits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from diffuspec.adl.acceptance import Expectation, SharedExpectation
from diffuspec.adl.baseline import Baseline, Interval
from diffuspec.adl.cost_curve import CostCurve
from diffuspec.adl.cost_model import CostModel
from diffuspec.adl.policies import make_policy
from diffuspec.algorithm.draft_tree import chain
from diffuspec.algorithm.outcomes import OutcomeModel, OutcomeRanking
from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft
from diffuspec.scheduler.calls import UNNAMED, DraftCall, Lane, VerifyCall
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.plan import Snapshot
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDrafts
from tests.support.fakes import EOS, FAKE_TARGET
from tests.support.stage import PROMPT, fake_drafter

NOW = 1000.0
DEFAULT = SpeculationParams(num_outcomes=0)

_MOST = 20_000  # rows and positions up to which costs are linear
_LOADS = (1, 2, 4, 8, 16)
_LENGTHS = DraftLengthConfig(max_draft_tokens=32)
_numbers = itertools.count()


def cost_model(
    verify: tuple[float, float] = (0.02, 0.0),
    draft: tuple[float, float] = (0.01, 0.0),
    interference: float = 1.0,
    names: Sequence[str] = (UNNAMED,),
) -> CostModel:
    """Return measured costs: seconds of a call, and of each row or position in it.

    By default a call takes the same for any number, and roles share one processor.
    """
    costs = CostModel(names, interference)
    _observe_line(costs.verification.curve, *verify)
    for one in costs.drafters.values():
        _observe_line(one.calls.curve, *draft)
    return costs


def _observe_line(curve: CostCurve, seconds: float, seconds_each: float) -> None:
    for size in (1, _MOST):
        curve.observe(size, seconds + size * seconds_each)


def pool_of_names(*names: str) -> DrafterPool:
    """Return a pool of one drafter for each name, by default of one that needs no name."""
    return DrafterPool.of({name: fake_drafter() for name in names or (UNNAMED,)})


def measured_baseline(costs: CostModel) -> Baseline:
    """Return a guard that has measured plain decoding under every load."""
    baseline = Baseline([UNNAMED])
    for number in _LOADS:
        seconds = costs.plain_seconds(number)
        for _ in range(3):
            baseline.observe(Interval(number, seconds, seconds, seconds))
    return baseline


def stop_drafts(baseline: Baseline, drafter: str, num_running: int) -> None:
    """Let the drafts of a drafter lose against plain decoding until the guard stops them."""
    while baseline.allows(drafter, num_running):
        baseline.observe(Interval(num_running, 2.0, 1.0, 1.0, {drafter: 1.0}))


def save_up_for_trials(baseline: Baseline, num_running: int) -> None:
    """Decode plainly until the time for a trial of the unnamed drafter has been saved up."""
    for _ in range(400):
        baseline.observe(Interval(num_running, 1.0, 1.0, 1.0))


# ---- requests


def decoding(
    speculation: SpeculationParams = DEFAULT,
    *,
    rightness: float = 0.9,
    drafter: str = UNNAMED,
) -> Request:
    """Return a request whose prompt is read; `rightness` is expected of each drafted token."""
    request = reading(len(PROMPT), speculation, rightness=rightness, drafter=drafter)
    request.prefill.num_read = request.num_tokens - 1
    return request


def reading(
    num_tokens: int,
    speculation: SpeculationParams = DEFAULT,
    *,
    rightness: float = 0.9,
    drafter: str = UNNAMED,
) -> Request:
    """Return a request whose prompt of so many tokens is unread."""
    shared = SharedExpectation(_LENGTHS.max_draft_tokens)
    shared.tokens = [sum(rightness**n for n in range(1, k + 1)) for k in shared.lengths]
    verified = shared.verified
    verified.nodes, verified.tokens, verified.whole = 1.0, rightness, rightness
    request = Request(
        f"request-{next(_numbers)}",
        np.arange(num_tokens, dtype=np.int32) % EOS,
        SamplingParams(max_tokens=200, ignore_eos=True),
        speculation,
        (EOS,),
        policy=make_policy(speculation, _LENGTHS),
        expect=lambda _: Expectation(shared),
        drafter=drafter,
    )
    request.step.started_at = NOW
    return request


def drafted(
    num_nodes: int = 4,
    speculation: SpeculationParams = DEFAULT,
    *,
    confidence: float = -0.1,
    alternatives: Collection[tuple[int, float]] = (),
    **kwargs: Any,
) -> Request:
    """Return a request that decodes and has a draft, a chain of tokens that are equally sure."""
    request = decoding(speculation, **kwargs)
    listed = (tuple(alternatives),) * (1 + num_nodes) if alternatives else ()
    draft = Draft(chain([7] * num_nodes), (confidence,) * num_nodes, num_nodes)
    request.take_draft(replace(draft, alternatives=listed), num_nodes, FAKE_TARGET)
    return request


# ---- calls under way


def in_verification(num_outcomes: int | Literal["auto"] = "auto") -> Request:
    """Return a request whose draft is being verified, with a likely alternative at each node."""
    speculation = SpeculationParams(num_outcomes=num_outcomes)
    request = drafted(8, speculation, confidence=-0.01, alternatives=[(9, -0.1), (10, -3.0)])
    request.pre_drafts = PreDrafts(OutcomeRanking(OutcomeModel()))
    return request


def drafting_call(lane: Lane, requests: Sequence[Request], seconds_left: float) -> DraftCall:
    """Let a drafter draft for requests since 10 ms, and expect it to end in so many seconds."""
    lengths = dict.fromkeys(requests, 8)
    lane.call = DraftCall(
        lane, lengths, lengths.copy(), started_at=NOW - 0.01, ends_at=NOW + seconds_left
    )
    return lane.call


def verifying_call(requests: Sequence[Request], seconds_left: float) -> VerifyCall:
    """Return a verification under way, which is expected to end in so many seconds."""
    number = sum(not one.prefill.is_long for one in requests)
    call = VerifyCall(requests, (), len(requests), number, number)
    call.started_at, call.ends_at = NOW - 0.01, NOW + seconds_left
    return call


# ---- the snapshot


def snapshot(
    ready: Sequence[Request],
    costs: CostModel | None = None,
    pool: DrafterPool | None = None,
    *,
    baseline: Baseline | None = None,
    verification: VerifyCall | None = None,
    **changes: Any,
) -> Snapshot:
    """Return the state with these requests, which are placed with drafters, at NOW."""
    costs = costs or cost_model()
    pool = pool or pool_of_names(*costs.drafters)
    calls = [lane.call for lane in pool.lanes if lane.call is not None]
    awaited = [request for call in calls for request in call.awaited]
    verified = verification.requests if verification is not None else ()
    for request in [*ready, *awaited, *verified]:
        lane = pool.place(request)
        if lane is not None and not request.prefill.is_long:
            lane.known.add(request)
    state = Snapshot(
        now=NOW,
        ready=ready,
        num_running=sum(not one.prefill.is_long for one in [*ready, *awaited, *verified]),
        lanes=pool.lanes,
        home=pool.home,
        verification=verification,
        isolated=(),
        verifier_at=0.0,
        costs=costs,
        baseline=baseline or measured_baseline(costs),
        first_token_price=1.0,
        overlap=False,
        max_prefill_seconds=math.inf,
        max_prefill_tokens=256,
        max_draft_seconds=math.inf,
        rate=400.0,
    )
    return replace(state, **changes)
