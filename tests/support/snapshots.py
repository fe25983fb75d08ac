"""States of a coordinator at one moment, for tests of its schedule: nothing here runs or waits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import Draft
from diffuspec.speculation.acceptance import Acceptance, Prospects, SharedAcceptance
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.guard import Interval, SpeculationGuard
from diffuspec.speculation.outcomes import Outcome
from diffuspec.speculation.values import (
    CallView,
    DrafterView,
    DraftTicket,
    Limits,
    PossibleOutcome,
    RequestView,
    Snapshot,
)

NOW = 1000.0
NAME = ""  # of the drafters, unless a test has several kinds

_MOST = 20_000  # rows and positions up to which costs are linear
_LOADS = (1, 2, 4, 8, 16)
_numbers = itertools.count()

LIMITS = Limits(
    first_token_price=1.0,
    overlap=False,
    max_prefill_seconds=math.inf,
    max_prefill_tokens=256,
    max_reading_seconds=math.inf,
)


def cost_model(
    verify: tuple[float, float] = (0.02, 0.0),
    draft: tuple[float, float] = (0.01, 0.0),
    interference: float = 1.0,
    names: Sequence[str] = (NAME,),
) -> CostModel:
    """Return measured costs: seconds of a call, and of each row or position in it.

    By default a call takes the same for any number, and roles share one processor.
    """
    mine = DraftCosts(Interference.assumed(interference))
    costs = CostModel(dict.fromkeys(names, mine))
    for size in (1, _MOST):
        costs = costs.observe_verification(size, 1, verify[0] + size * verify[1], {})
        for name in names:
            costs = costs.observe_draft(name, size, 1, 0, draft[0] + size * draft[1])
    return costs


def unknown_costs() -> CostModel:
    """Return costs of which nothing has been measured."""
    return CostModel({NAME: DraftCosts(Interference.assumed(1.0))})


def measured_guard(costs: CostModel) -> SpeculationGuard:
    """Return a guard that has measured plain decoding under every load."""
    guard = SpeculationGuard(tuple(costs.drafters))
    for number in _LOADS:
        seconds = costs.plain_seconds(number)
        for _ in range(3):
            guard, _ = guard.observe(Interval(number, seconds, seconds, seconds))
    return guard


def stopped(guard: SpeculationGuard, drafter: str, num_running: int) -> SpeculationGuard:
    """Let the drafts of a drafter lose against plain decoding until the guard stops them."""
    while not guard.num_stopped_steps(drafter, num_running):
        guard, _ = guard.observe(Interval(num_running, 2.0, 1.0, 1.0, {drafter: 1.0}))
    return guard


def after_plain_steps(
    guard: SpeculationGuard, num_running: int, number: int = 400
) -> SpeculationGuard:
    """Decode plainly for so many steps, 1 % of whose time may go into exploration."""
    for _ in range(number):
        guard, _ = guard.observe(Interval(num_running, 1.0, 1.0, 1.0))
    return guard


# ---- requests


def prospects_of(rightness: float = 0.9, most: int = 32) -> Prospects:
    """Return what drafts bring of which each token is right with this probability."""
    shared = SharedAcceptance(most)
    shared.tokens = [sum(rightness**n for n in range(1, k + 1)) for k in shared.lengths]
    shared.kept = shared.kept._replace(nodes=1.0, tokens=rightness, whole=rightness)
    return Acceptance(shared).prospects


def decoding(rightness: float = 0.9, **changes: Any) -> RequestView:
    """Return a request whose prompt is read."""
    view = RequestView(
        request_id=f"request-{next(_numbers)}",
        state="ready",
        drafter=NAME,
        home=0,
        held_by=(0,),
        num_tokens=5,
        num_unread=1,
        room=200,
        fixed_length=None,
        is_priced=True,
        is_suspect=False,
        prospects=prospects_of(rightness),
        max_nodes=32,
    )
    return view._replace(**changes)


def reading(num_tokens: int, **changes: Any) -> RequestView:
    """Return a request whose prompt of so many tokens is unread."""
    state: dict[str, Any] = {"home": None, "held_by": ()}
    return decoding(num_tokens=num_tokens, num_unread=num_tokens, **{**state, **changes})


def drafted(num_nodes: int = 4, reach: float = 0.9, **changes: Any) -> RequestView:
    """Return a request that has a draft, a chain of tokens that are equally sure."""
    view = decoding(**changes)
    draft = Draft(chain([7] * num_nodes), (math.log(reach),) * num_nodes, num_nodes)
    ticket = DraftTicket(view.request_id, num_nodes)
    reached = Acceptance(SharedAcceptance(32)).reach(draft)
    return view._replace(is_settled=True, ticket=ticket, reach=reached)


def in_verification(
    probabilities: Sequence[float] = (0.6, 0.2), num_nodes: int = 8, **changes: Any
) -> RequestView:
    """Return a request whose draft is being verified, with these possible outcomes."""
    outcomes = [
        PossibleOutcome(Outcome(0, 9 + index), chance, room=100)
        for index, chance in enumerate(probabilities)
    ]
    state: dict[str, Any] = {"state": "verifying", "outcomes": outcomes}
    return drafted(num_nodes)._replace(**{**state, **changes})


# ---- drafters


def drafter_view(number: int = 0, name: str = NAME, **changes: Any) -> DrafterView:
    """Return an idle drafter that is well."""
    view = DrafterView(
        number,
        name,
        is_available=True,
        is_gone=False,
        is_check_due=False,
        may_pre_draft=True,
        num_held=0,
        call=None,
    )
    return view._replace(**changes)


def drafting(requests: Sequence[RequestView], seconds_left: float, length: int = 8) -> CallView:
    """Return a draft call since 10 ms, which is expected to end in so many seconds."""
    tickets = [DraftTicket(request.request_id, length) for request in requests]
    return CallView(tickets, NOW - 0.01, NOW + seconds_left)


# ---- the snapshot


def snapshot(
    requests: Sequence[RequestView], costs: CostModel | None = None, **changes: Any
) -> Snapshot:
    """Return the state with these requests at NOW; `changes`: of the snapshot or its limits."""
    costs = costs or cost_model()
    limits = {name: changes.pop(name) for name in [*changes] if hasattr(LIMITS, name)}
    drafters = [drafter_view(number, name) for number, name in enumerate(costs.drafters)]
    state = Snapshot(
        now=NOW,
        requests=requests,
        drafters=drafters,
        costs=costs,
        guard=measured_guard(costs),
        limits=replace(LIMITS, **limits),
        rate=400.0,
    )
    return replace(state, **changes)
