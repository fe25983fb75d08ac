"""The schedule: what to verify, draft and pre-draft now, and until when to wait.

`schedule` is a pure function. It lists candidate plans, predicts the tokens that each commits until
all requests in it have had their step, and chooses the plan whose tokens exceed the price of its
seconds by the most. A second costs as many tokens as the best alternative commits in one, plus
`first_token_price` times that for each awaited first token. Waiting for a draft, verifying without
it, prefilling a prompt first, and not drafting at all are all candidates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from diffuspec.adl.acceptance import nodes_to_verify
from diffuspec.adl.cost_model import DraftCosts
from diffuspec.scheduler.calls import Lane
from diffuspec.scheduler.draft_calls import (
    add_calls,
    load_of,
    may_read,
    sized,
    tokens_to_read,
)
from diffuspec.scheduler.plan import (
    Batch,
    Drafts,
    Plan,
    Score,
    Scorer,
    Snapshot,
    batch_of,
    plain_batch,
)
from diffuspec.scheduler.pre_drafts import add_early_drafts, add_pre_drafts
from diffuspec.scheduler.request import Request


@dataclass(slots=True)
class _Groups:
    """The ready requests, by what they wait for."""

    prompts: list[Request] = field(default_factory=list)  # much of their prefix is unread
    drafted: list[Request] = field(default_factory=list)
    plain: list[Request] = field(default_factory=list)  # without a draft in this step
    open: list[Request] = field(default_factory=list)  # may draft, or be verified without
    num_later: int = 0  # plain ones that may draft once their drafter is idle


def schedule(s: Snapshot) -> Plan:
    """Return the best plan."""
    if not s.may_begin:
        return Plan(wait_until=s.now, rate=s.rate)
    can_verify = s.verification is None and s.now >= s.verifier_at
    if can_verify and s.isolated:
        return Plan(verify=s.isolated, rate=s.rate)
    groups = _grouped(s)
    drafts = _drafts(s, groups)
    plan = _verifying_plan(s, groups, drafts) if can_verify else Plan(drafts=drafts.calls)
    plan.rate = drafts.rate
    if plan.verify:
        plan.prefill_chunk_tokens = s.prefill_chunk_tokens
    _cut(s, plan)
    if s.overlap:
        add_early_drafts(s, plan)
        add_pre_drafts(s, plan)
    if s.now < s.verifier_at:
        plan.wait_until = min(plan.wait_until, s.verifier_at)
    return plan


def plain_plan(s: Snapshot) -> Plan:
    """Return a plan that asks no model: it verifies all ready requests, and drafts for none."""
    if s.now < s.verifier_at:
        return Plan(wait_until=s.verifier_at)
    return Plan(verify=s.isolated or s.ready if s.verification is None else ())


def _grouped(s: Snapshot) -> _Groups:
    groups = _Groups()
    for request in s.ready:
        if request.prefill.is_long:
            groups.prompts.append(request)
        elif request.step.is_settled:
            has_draft = request.step.draft.tree.num_nodes > 0
            (groups.drafted if has_draft else groups.plain).append(request)
        elif request.room <= 0 or request.policy.num_draft_tokens == 0 or s.home(request) is None:
            groups.plain.append(request)
        else:
            groups.open.append(request)
    return groups


# ---- what could be drafted


def _drafts(s: Snapshot, groups: _Groups) -> Drafts:
    """Size the drafts of open requests. Those that do not draft become plain ones.

    Requests whose clients chose to draft are in no group while they wait for their drafter.
    """
    drafts = Drafts(rate=s.rate)
    by_drafter: dict[str, list[Request]] = {}
    for request in groups.open:
        by_drafter.setdefault(request.drafter, []).append(request)
    groups.open, rates = [], []
    for name, requests in by_drafter.items():
        load = load_of(s, name, requests)
        lengths, rate = sized(s, requests, load, drafts.trials)
        if not drafts.trials.keys().isdisjoint(requests):
            saved = s.baseline.saved_for_trials(name, load.num_running)
            drafts.prepaid += rate * saved * s.costs.plain_seconds(load.num_running)
        rates.append(rate)
        begun: dict[Request, int] = {}
        reading = Counter[Lane]()  # prompt tokens to read in each drafter's call
        for request in requests:
            lane = s.home(request)
            if request not in lengths or lane is None:
                groups.plain.append(request)
            elif lane.is_idle and may_read(s, lane, reading[lane], request):
                reading[lane] += tokens_to_read(lane, request)
                groups.open.append(request)
                begun[request] = lengths[request]
            elif request.policy.num_draft_tokens is None:
                groups.plain.append(request)
                groups.num_later += 1
        if begun:
            add_calls(s, drafts, begun)
    if rates:
        drafts.rate = max(rates)
    return drafts


# ---- candidates


def _verifying_plan(s: Snapshot, groups: _Groups, drafts: Drafts) -> Plan:
    """Choose what to do while the verifier is idle."""
    coming, left = _coming(s)
    prompts = _prompts_to_read(s, groups.prompts)
    free = [one for one in groups.open if one.policy.num_draft_tokens is None]
    everything = [*prompts, *groups.drafted, *groups.plain, *free]
    if not drafts.calls and not coming.num_requests and not (prompts and groups.drafted):
        return Plan(verify=everything)  # there is no choice
    if not coming.num_requests and len(everything) == len(free):
        return Plan(drafts=drafts.calls, considered=_rates(s, drafts))  # `sized` has chosen
    prompt_batch, drafted = batch_of(s, prompts), batch_of(s, groups.drafted)
    plain, opened = plain_batch(len(groups.plain)), plain_batch(len(free))
    scorer = Scorer(s, drafts.rate, _drafting(s, drafts))
    found: list[tuple[Score, Plan]] = []
    may_defer = _may_defer(s, groups, drafts, is_for_prompts=len(prompts) > 0)
    if everything and may_defer:
        now = prompt_batch.plus(drafted, plain, opened)
        found.append((scorer.score("verify", now, left, coming), Plan(verify=everything)))
    if prompts and groups.drafted and may_defer and not _is_overdue(s, prompts, groups.drafted):
        first, then = prompt_batch.plus(plain, opened), drafted.plus(coming)
        plan = Plan(verify=[*prompts, *groups.plain, *free])
        found.append((scorer.score("prompts first", first, left, then), plan))
    if coming.num_requests and may_defer:
        settled = plain_batch(len(groups.plain) - groups.num_later)
        then = prompt_batch.plus(drafted, settled, opened, coming)
        wait = scorer.score("wait for drafts", Batch(), left, then, groups.num_later)
        found.append((wait, Plan()))
    if drafts.calls:
        seconds, then = max(left, drafts.seconds), drafts.batch.plus(coming)
        ready = prompt_batch.plus(drafted, plain)
        begin = Plan(drafts=drafts.calls)
        before = scorer.score("draft", Batch(), seconds, then.plus(ready))
        found.append((before.plus(drafts.prepaid), begin))
        if ready.num_requests:
            both = Plan([*prompts, *groups.drafted, *groups.plain], drafts=drafts.calls)
            beside = scorer.score("draft beside", ready, seconds, then)
            found.append((beside.plus(drafts.prepaid), both))
    return _winner(s, found, left)


def _prompts_to_read(s: Snapshot, prompts: Sequence[Request]) -> list[Request]:
    """Return the prompts to read in the next verification, shorter ones first.

    Prompts that would delay the others' first tokens by more than they gain have to wait, but none
    waits longer than reading it takes.
    """
    if len(prompts) < 2:
        return list(prompts)
    seconds = s.costs.verification.curve.at
    sizes = {one: min(one.prefill.num_unread, s.prefill_chunk_tokens) for one in prompts}
    due = {one for one in prompts if s.now - one.step.started_at > seconds(sizes[one]) > 0}
    order = sorted(prompts, key=lambda one: (one not in due, sizes[one]))
    number, read, rest = len(order), 0, sum(sizes.values())
    costs: list[float] = []
    for count, one in enumerate(order, start=1):
        read, rest = read + sizes[one], rest - sizes[one]
        first, then = seconds(read), seconds(rest) if rest else 0.0
        delay = count * first + (number - count) * (first + then)
        costs.append(first + then + s.first_token_price * delay)
    return order[: max(costs.index(min(costs)) + 1, len(due))]


def _may_defer(s: Snapshot, groups: _Groups, drafts: Drafts, *, is_for_prompts: bool) -> bool:
    """Return whether open requests that need a draft may be deferred while drafters are idle.

    They may be for prompts, but no longer than the drafts take, since new prompts keep arriving.
    """
    given = [one for one in groups.open if one.policy.num_draft_tokens is not None]
    longest = max([s.now - one.step.started_at for one in given], default=0.0)
    return not given or (is_for_prompts and longest <= drafts.seconds)


def _is_overdue(s: Snapshot, prompts: Sequence[Request], drafted: Sequence[Request]) -> bool:
    """Return whether a draft has waited for as long as reading these prompts takes."""
    batch = batch_of(s, prompts)
    seconds = s.costs.verify_seconds(batch.num_rows, batch.num_requests)
    return any([s.now - (one.step.ready_at or one.step.started_at) > seconds for one in drafted])


def _rates(s: Snapshot, drafts: Drafts) -> Iterator[Score]:
    """Yield the scores by which draft lengths were chosen, if they were."""
    if not drafts.rate:
        return
    number, tokens = s.num_running, drafts.batch.tokens
    seconds = s.costs.plain_seconds(number)
    yield Score("draft", tokens, tokens / drafts.rate, 0.0, 0.0)
    yield Score("verify", number, seconds, 0.0, number - drafts.rate * seconds)


def _drafting(s: Snapshot, drafts: Drafts) -> DraftCosts:
    """Return the costs of the drafter that slows the verifier down the most."""
    calls = [*drafts.calls, *[lane.call for lane in s.lanes if lane.call is not None]]
    costs = [s.costs.drafters[call.lane.chosen_by] for call in calls]
    return max(costs, key=lambda one: one.interference.value, default=DraftCosts(0.0))


def _winner(s: Snapshot, found: Sequence[tuple[Score, Plan]], left: float) -> Plan:
    found = sorted(found, key=lambda one: one[0].value, reverse=True)
    plan = found[0][1]
    plan.considered = [score for score, _ in found]
    if not plan.verify and not plan.drafts and left < math.inf:
        # a tenth of a millisecond: the pace of the loop itself
        plan.wait_until = s.now + max(left, 1e-4)
    return plan


def _coming(s: Snapshot) -> tuple[Batch, float]:
    """Return the requests whose drafts are being made, and the seconds until all are ready.

    A call that has taken twice as long as expected may hang, and is not waited for.
    """
    batch, left = Batch(), 0.0
    for lane in s.lanes:
        call = lane.call
        if call is not None and call.awaited and not call.is_overdue(s.now):
            number = len(call.awaited)
            parts = [one.expectation.verified_at(k) for one, k in call.awaited.items()]
            accepted, nodes = map(sum, zip(*parts, strict=True))
            rows, tokens = number + nodes, number + accepted
            batch = batch.plus(Batch(rows, number, 0, tokens, call.num_positions))
            left = max(left, call.seconds_left(s.now))
    return batch, left


# ---- completing the chosen plan


def _cut(s: Snapshot, plan: Plan) -> None:
    """Cut the drafts that are verified now to the nodes that are worth verifying."""
    cut = [one for one in plan.verify if one.step.reach]
    if not cut or not s.costs.verification.curve.is_known:
        return
    batch = batch_of(s, plan.verify)
    reaches = [one.step.reach for one in cut]
    num_others = round(batch.num_rows) - sum(map(len, reaches))
    rate = plan.rate * (1 + s.first_token_price * batch.num_prompts)
    kept = nodes_to_verify(reaches, num_others, s.costs.verification.curve, rate)
    # At least one node of a trial is verified: its verdict calibrates the confidences of others.
    for request, number in zip(cut, kept, strict=True):
        plan.num_nodes[request] = max(number, int(request.step.trial_steps > 0))
