"""The schedule: what to verify, draft and pre-draft now, and until when to wait.

`schedule` is a pure function of frozen values. Requests are drafted for if that pays, by
`speculation.lengths`. While the verifier is idle, candidate plans are compared: verify what is
ready, wait for drafts, or draft first. Each is worth the tokens that it commits until all requests
in it have had their step, minus the price of its seconds: a second costs as many tokens as the best
alternative commits in one, and `first_token_price` times that for each awaited first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffuspec.scheduler.candidates import Batch, Scorer, batch_after, batch_of, coming
from diffuspec.scheduler.draft_plans import Drafts, size_drafts, with_pre_drafts
from diffuspec.scheduler.readiness import Readiness, choose_ready, num_running_of, readiness_of
from diffuspec.scheduler.room import Room
from diffuspec.speculation.lengths import nodes_to_verify
from diffuspec.speculation.values import Plan, RequestView, Score, Snapshot

_MAX_PROMPT_TOKENS = 8192  # prompt tokens of all requests in one verification
_LEAST_WAIT = 1e-4  # seconds: the pace of the loop itself


@dataclass(slots=True)
class _Groups:
    """The ready requests, by what they wait for."""

    prompts: list[RequestView]
    drafted: list[RequestView]
    plain: list[RequestView]  # without a draft in this step
    open: list[RequestView]  # may draft, or be verified without


def schedule(s: Snapshot) -> Plan:
    """Return the best plan."""
    ready = readiness_of(s)
    can_verify = s.verification_ends_at is None and s.now >= s.verifier_at
    if can_verify and s.isolated:
        return Plan(
            s.isolated[0],
            waiting=ready.room.waiting,
            rate=s.rate,
            alone=ready.alone,
            num_running=ready.num_running,
        )
    groups, reasons = _grouped(ready)
    max_read = _max_read(s, groups.prompts, ready.num_running)
    drafts = size_drafts(s, ready, groups.open)
    settled = [request for request in groups.prompts if request.request_id in max_read]
    settled += [*groups.drafted, *groups.plain, *drafts.plain]
    plan = Plan(drafts=drafts.calls)
    if can_verify:
        plan = _verify_or_wait(s, settled, drafts, max_read)
    chosen = {*plan.verify}
    verified = [request for request in ready.requests if request.request_id in chosen]
    plan = plan._replace(
        num_nodes=_fitting_nodes(
            verified, ready.room, _num_nodes(s, verified, max_read, drafts.rate)
        ),
        max_read={name: n for name, n in max_read.items() if name in chosen},
        homes=ready.placed,
        health_checks=_health_checks(s, verified),
        alone=ready.alone,
        num_running=ready.num_running,
        rate=drafts.rate,
        reasons={**reasons, **drafts.reasons},
        preempted=ready.room.preempted if plan.verify else (),
        waiting=ready.room.waiting,
    )
    if s.limits.overlap:
        plan = _with_pre_drafts(s, ready, plan)
    if s.now < s.verifier_at:
        plan = plan._replace(wait_until=min(plan.wait_until, s.verifier_at))
    return plan


def plain_plan(s: Snapshot) -> Plan:
    """Return a plan that asks no model: it verifies all that may run, and drafts for none."""
    ready, alone, room = choose_ready(s)
    if s.now < s.verifier_at:
        return Plan(wait_until=s.verifier_at, alone=alone)
    if s.verification_ends_at is not None:
        return Plan(alone=alone)
    if s.isolated:
        return Plan(s.isolated[0], alone=alone, num_running=num_running_of(s, ready))
    return Plan(
        _ids(ready),
        num_nodes=_fitting_nodes(ready, room, {}),
        preempted=room.preempted,
        waiting=room.waiting,
        alone=alone,
        num_running=num_running_of(s, ready),
    )


def _grouped(ready: Readiness) -> tuple[_Groups, dict[str, str]]:
    """Return the groups, and why the plain ones are not drafted for."""
    groups, reasons = _Groups([], [], [], []), dict[str, str]()
    for request in ready.requests:
        if request.is_long:
            groups.prompts.append(request)
        elif request.is_settled and request.reach:
            groups.drafted.append(request)
        elif request.may_draft and request.request_id in ready.homes:
            groups.open.append(request)
        else:
            groups.plain.append(request)
            has_rows = ready.room.max_nodes.get(request.request_id) != 0
            reasons[request.request_id] = _why_not(request) if has_rows else "no page is left"
    return groups, reasons


def _why_not(request: RequestView) -> str:
    if request.fixed_length == 0:
        return "speculation is off"
    if request.room <= 0:
        return "no draft fits: one token is left"
    return "its draft was empty" if request.is_settled else "no drafter is available"


def _max_read(s: Snapshot, prompts: Sequence[RequestView], num_running: int) -> dict[str, int]:
    """Share the tokens that a verification may read among prompts, the oldest first."""
    if not prompts:
        return {}
    limits, costs = s.limits, s.costs
    seconds = limits.max_prefill_seconds
    if costs.is_known:
        seconds = max(seconds, costs.plain_seconds(max(num_running, 1)))
    left, max_read = costs.num_rows_within(seconds, _MAX_PROMPT_TOKENS), {}
    for request in prompts:
        if left > 0:
            number = min(request.num_unread, limits.max_prefill_tokens, left)
            max_read[request.request_id] = number
            left -= number
    return max_read


def _verify_or_wait(
    s: Snapshot, settled: Sequence[RequestView], drafts: Drafts, max_read: Mapping[str, int]
) -> Plan:
    """Choose what to do while the verifier is idle; `settled`: requests that only verify."""
    expected, left = coming(s)
    free = [request for request in drafts.open if request.fixed_length is None]
    everything = [*settled, *free]
    if not drafts.calls and not expected.num_requests:
        return Plan(_ids(everything))  # there is no choice
    if not expected.num_requests and not settled:
        return Plan(drafts=drafts.calls)  # `choose_lengths` has chosen
    scorer, candidates = Scorer(s, drafts.rate), list[tuple[Score, Plan]]()
    now = batch_of(settled, max_read)
    whole = now.plus(batch_of(free, max_read, with_drafts=False))
    if everything and not drafts.must_begin:
        score = scorer.score("verify", whole, left, expected)
        candidates.append((score, Plan(_ids(everything))))
    if expected.num_requests and not drafts.must_begin:
        score = scorer.score("wait for drafts", Batch(), left, whole.plus(expected))
        candidates.append((score, Plan(wait_until=s.now + max(left, _LEAST_WAIT))))
    if drafts.calls:
        requests = {request.request_id: request for request in drafts.open}
        then = expected.plus(*[batch_after(requests, call) for call in drafts.calls])
        seconds = max([left, *[call.seconds for call in drafts.calls]])
        score = scorer.score("draft", Batch(), seconds, now.plus(then))
        candidates.append((score, Plan(drafts=drafts.calls)))
        if settled:
            score = scorer.score("draft beside", now, seconds, then)
            candidates.append((score, Plan(_ids(settled), drafts=drafts.calls)))
    candidates.sort(key=lambda pair: pair[0].value, reverse=True)
    return candidates[0][1]._replace(considered=[score for score, _ in candidates])


# ---- completing the plan


def _num_nodes(
    s: Snapshot, verified: Sequence[RequestView], max_read: Mapping[str, int], rate: float
) -> dict[str, int]:
    """Return how many nodes are worth verifying of drafts whose length was free."""
    cut = [
        request
        for request in verified
        if request.reach and request.fixed_length is None and not request.is_long
    ]
    if not cut or not s.costs.is_known:
        return {}
    batch = batch_of(verified, max_read)
    num_others = round(batch.num_rows) - sum([len(request.reach) for request in cut])
    price = rate * (1 + s.limits.first_token_price * batch.num_prompts)
    kept = nodes_to_verify([request.reach for request in cut], num_others, s.costs, price)
    # A verdict on at least one node of an exploring draft calibrates the others' confidences.
    return {
        request.request_id: max(
            number, int(request.ticket is not None and request.ticket.is_exploration)
        )
        for request, number in zip(cut, kept, strict=True)
    }


def _fitting_nodes(
    verified: Sequence[RequestView], room: Room, num_nodes: Mapping[str, int]
) -> dict[str, int]:
    """Return how many nodes to verify, of those that are worth it, where all have pages."""
    fitting = dict(num_nodes)
    for request in verified:
        wanted = num_nodes.get(request.request_id, len(request.reach))
        if wanted > (most := room.max_nodes.get(request.request_id, wanted)):
            fitting[request.request_id] = most
    return fitting


def _health_checks(s: Snapshot, verified: Sequence[RequestView]) -> list[tuple[int, str]]:
    """Return failed drafters to try, beside a verification, with copies of draft requests."""
    due = [drafter.number for drafter in s.drafters if drafter.is_idle and drafter.is_check_due]
    fit = [
        request.request_id for request in verified if request.room > 0 and request.fixed_length != 0
    ]
    return [(number, fit[0]) for number in due] if fit else []


def _with_pre_drafts(s: Snapshot, ready: Readiness, plan: Plan) -> Plan:
    if s.verification_ends_at is not None:
        left = max(s.verification_ends_at - s.now, 0.0)
        return plan._replace(drafts=with_pre_drafts(s, ready, plan.drafts, left))
    if plan.verify:  # drafts begin in the next plan, in one call with the outcomes
        return plan._replace(drafts=(), wait_until=s.now)
    return plan


def _ids(requests: Iterable[RequestView]) -> list[str]:
    return [request.request_id for request in requests]
