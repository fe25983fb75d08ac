"""A step that has ended: its statistics, its output, its report to metrics and controllers."""

from __future__ import annotations

from collections.abc import Mapping

from diffuspec.algorithm.draft_tree import depth_of
from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.admission import Admission
from diffuspec.coordinator.lifecycle import StepTimes
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.verify_batch import Verified
from diffuspec.core.types import RequestOutput, StepStats, Verdict
from diffuspec.telemetry.metrics import Metrics
from diffuspec.telemetry.trace import Argument, Colour, Tracer


def step_stats(
    request: Request, result: Verified, num_committed_tokens: int, next_step: StepTimes
) -> StepStats:
    """Return the statistics of a request's step, which ended as `next_step` began."""
    draft, times, verdict = request.draft, request.times, result.verdict
    seconds = next_step.started_at - times.started_at
    verify_busy = next_step.verify_busy_seconds - times.verify_busy_seconds
    draft_busy = next_step.draft_busy_seconds - times.draft_busy_seconds
    pre_drafts = request.pre_drafts
    has_ended = request.finish_reason is not None
    return StepStats(
        num_draft_tokens=request.num_draft_tokens,
        num_tree_nodes=draft.tree.num_nodes,
        num_accepted_tokens=min(verdict.num_accepted_tokens, num_committed_tokens),
        num_committed_tokens=num_committed_tokens,
        tree_depth=depth_of(draft.tree),
        draft_seconds=draft.draft_seconds,
        search_seconds=draft.search_seconds,
        verify_seconds=times.prefill_seconds + verdict.verify_seconds,
        step_seconds=seconds,
        fallback=request.fallback,
        transport_seconds=(
            draft.transport_seconds + times.prefill_transport_seconds + verdict.transport_seconds
        ),
        pre_draft=None if pre_drafts is None or has_ended else pre_drafts.result,
        num_wasted_draft_tokens=0 if pre_drafts is None else pre_drafts.num_wasted_tokens,
        verify_idle_seconds=max(seconds - verify_busy, 0.0),
        draft_idle_seconds=max(seconds - draft_busy, 0.0),
        num_cached_tokens=request.reading.num_cached_tokens if request.num_steps == 1 else 0,
    )


def step_output(
    request: Request,
    verdict: Verdict,
    step: StepStats,
    token_ids: tuple[int, ...],
    pieces: tuple[str, ...],
) -> RequestOutput:
    """Return what a step adds to the answer: these tokens, and the text that each released."""
    return RequestOutput(
        token_ids=token_ids,
        num_accepted_tokens=step.num_accepted_tokens,
        pieces=pieces,
        text="".join(pieces),
        logprobs=verdict.logprobs and verdict.logprobs[: len(token_ids)],
        finish_reason=request.finish_reason,
        step=step,
        draft=request.verified_draft(verdict),
        prompt_logprobs=request.prompt_logprobs(),
        stop_reason=request.stop_reason,
    )


class StepObserver:
    """Reports each step to metrics, trace and controllers. `costs` are by the drafters' name."""

    def __init__(
        self,
        metrics: Metrics,
        tracer: Tracer | None,
        admission: Admission,
        costs: Mapping[str, StepCosts],
    ) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._admission = admission
        self._costs = costs

    def observe(self, request: Request, result: Verified, step: StepStats, now: float) -> None:
        is_first = request.num_steps == 1
        self._metrics.observe_step(step, is_first=is_first)
        if request.auto is not None and step.num_draft_tokens:
            self._metrics.auto_steps.inc(request.drafter)
        if self._tracer is not None:
            trace_step(self._tracer, request, result, step, now)
        if is_first:
            times = request.timeline
            times.first_token_at = now
            seconds = now - times.submitted_at, now - times.admitted_at
            sizes = request.num_prompt_tokens, step.num_cached_tokens
            self._metrics.observe_first_token(*seconds, *sizes)
        else:
            for costs in self._costs.values():
                costs.num_running = self._admission.num_decoding
            learn_overhead(self._costs[request.drafter], request, result, step)
            if request.auto is not None:
                request.auto.observe(request, step)


def learn_overhead(costs: StepCosts, request: Request, result: Verified, step: StepStats) -> None:
    """Learn from the part of a step that is neither drafting nor verification."""
    spent = request.times.drafting_seconds + request.times.yielded_seconds
    overhead = step.step_seconds - spent - result.alone_seconds
    if step.num_tree_nodes:
        costs.observe_overhead(max(overhead, 0.0))
    elif result.is_plain:
        costs.observe_plain_overhead(max(overhead, 0.0))


def trace_step(
    tracer: Tracer, request: Request, result: Verified, step: StepStats, now: float
) -> None:
    """Draw a step in the lane of its request's slot: the draft, then the verification."""
    times = request.times
    lane = f"request slot {request.slot}"
    about: dict[str, Argument] = {
        "request": request.request_id,
        "draft_tokens": step.num_draft_tokens,
        "tree_nodes": step.num_tree_nodes,
        "accepted": step.num_accepted_tokens,
        "committed": step.num_committed_tokens,
        "fallback": step.fallback,
        "wasted_draft_tokens": step.num_wasted_draft_tokens,
    }
    ended = result.started_at + result.seconds
    tracer.span(lane, "step", times.started_at, now, None, about)
    if times.drafting_seconds:
        tracer.span(lane, "wait for draft", times.started_at, times.ready_at, "yellow")
    tracer.span(lane, "verify", result.started_at, ended, "good")
    if step.pre_draft is not None:
        colour: Colour = "good" if step.pre_draft == "hit" else "bad"
        tracer.span(lane, f"pre-draft {step.pre_draft}", result.started_at, ended, colour)
    tracer.span("coordinator", "commit", ended, now, None, {"request": about["request"]})
