"""Explains a plan in one line: what it starts, its candidates, and why requests do not draft."""

from __future__ import annotations

from collections import Counter

from diffuspec.adl.draft_lengths import trial_length
from diffuspec.scheduler.calls import DraftCall
from diffuspec.scheduler.draft_calls import load_of
from diffuspec.scheduler.plan import Plan, Score, Snapshot
from diffuspec.scheduler.request import Request


def explain(plan: Plan, s: Snapshot) -> str:
    """Return the calls of a plan, the scores of its candidates, and reasons for missing drafts.

    `s`: the snapshot from which the plan was made.
    """
    nodes = sum(plan.num_nodes.get(one, one.step.draft.tree.num_nodes) for one in plan.verify)
    verify = f"verify {len(plan.verify)}" + (f" ({nodes} nodes)" if nodes else "")
    calls = f"{verify}, draft {[*map(_sizes, plan.drafts)]}"
    reasons = Counter(_why_no_draft(s, one) for one in plan.verify if not one.step.is_settled)
    causes = [
        reason if number == 1 else f"{number} x {reason}" for reason, number in reasons.items()
    ]
    parts = [", ".join(map(_scored, plan.considered)), *causes]
    return f"{calls}, at {plan.rate:.0f} tokens/s: " + "; ".join(filter(None, parts))


def _sizes(call: DraftCall) -> str:
    if call.trial is not None:
        return f"trial of {call.lane.name}"
    ahead = f" + {len(call.jobs)} ahead" if call.jobs else ""
    return "/".join(map(str, call.lengths.values())) + ahead


def _scored(one: Score) -> str:
    delay = f", first tokens wait {1e3 * one.delay:.1f} ms" if one.delay else ""
    size = f"{one.tokens:.1f} tokens in {1e3 * one.seconds:.2f} ms"
    return f"{one.name} {one.value:+.2f} ({size}{delay})"


def _why_no_draft(s: Snapshot, request: Request) -> str:
    """Return why a request is verified without a draft."""
    name, number, lane = request.drafter, s.num_running, s.home(request)
    if request.policy.num_draft_tokens == 0:
        return "speculation is off"
    if request.room <= 0:
        return "no draft fits: one token is left"
    if request.prefill.is_long:
        return "its prompt is read"
    if lane is None:
        return "no drafter is available"
    if stopped := s.baseline.num_stopped_steps(name, number):
        return f"drafts have lost: none for {stopped:.0f} more plain steps"
    if s.baseline.wants_plain(number):
        return "plain decoding is measured"
    if not lane.is_idle:
        return "its drafter is busy"
    return f"no draft pays: {_draft_of(s, request)}"


def _draft_of(s: Snapshot, request: Request) -> str:
    """Return what a short draft of a request is expected to bring, and what it costs."""
    length = trial_length(request)
    accepted, nodes = request.expectation.verified_at(length)
    [seconds] = load_of(s, request.drafter, [request]).seconds([length], [nodes])
    plain = s.costs.plain_seconds(s.num_running)
    return f"{accepted:.1f} of {length} tokens for {1e3 * (seconds - plain):.1f} ms more"
