"""Reports of steps and calls: statistics, outputs, metrics and trace spans."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from diffuspec.algorithm.draft_tree import depth_of
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import EMPTY_DRAFT, RequestOutput, StepStats, Verdict, VerifiedDraft
from diffuspec.scheduler.admission import Admission
from diffuspec.scheduler.calls import VerifyCall
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.pages import Pages
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import Step
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.metrics import Metrics
from diffuspec.telemetry.trace import Argument, Colour, Tracer


def report_step(
    request: Request,
    verdict: Verdict,
    committed: tuple[tuple[int, ...], tuple[str, ...]],
    call: VerifyCall,
    following: Step,
    metrics: Metrics,
    tracer: Tracer | None,
) -> StepStats:
    """Emit the output of a request's step, which ended when `following` began; report the step.

    committed: its tokens, and the text that each one released. Returns its statistics.
    """
    now = following.started_at
    step = _step_stats(request, verdict, len(committed[0]), following)
    request.outputs.put(_step_output(request, verdict, step, *committed))
    _observe_step(metrics, request, step, now)
    if tracer is not None:
        _trace_step(tracer, request, call, step, now)
    return step


def _step_stats(
    request: Request, verdict: Verdict, num_committed: int, following: Step
) -> StepStats:
    step, draft, pre_drafts = request.step, request.step.draft, request.pre_drafts
    seconds = following.started_at - step.started_at
    verify_busy = following.verify_busy_seconds - step.verify_busy_seconds
    draft_busy = following.draft_busy_seconds - step.draft_busy_seconds
    has_ended = request.finish_reason is not None
    return StepStats(
        num_draft_tokens=step.num_draft_tokens,
        num_tree_nodes=draft.tree.num_nodes,
        num_accepted_tokens=min(verdict.num_accepted_tokens, num_committed),
        num_committed_tokens=num_committed,
        tree_depth=depth_of(draft.tree),
        draft_seconds=draft.draft_seconds,
        search_seconds=draft.search_seconds,
        verify_seconds=step.prefill_seconds + verdict.verify_seconds,
        step_seconds=seconds,
        fallback=step.fallback,
        transport_seconds=(
            draft.transport_seconds + step.prefill_transport_seconds + verdict.transport_seconds
        ),
        pre_draft=None if pre_drafts is None or has_ended else pre_drafts.result,
        num_wasted_draft_tokens=0 if pre_drafts is None else pre_drafts.num_wasted_tokens,
        verify_idle_seconds=max(seconds - verify_busy, 0.0),
        draft_idle_seconds=max(seconds - draft_busy, 0.0),
        num_cached_tokens=request.prefill.num_cached_tokens if request.num_steps == 1 else 0,
    )


def _step_output(
    request: Request,
    verdict: Verdict,
    step: StepStats,
    token_ids: tuple[int, ...],
    pieces: tuple[str, ...],
) -> RequestOutput:
    return RequestOutput(
        token_ids=token_ids,
        num_accepted_tokens=step.num_accepted_tokens,
        pieces=pieces,
        text="".join(pieces),
        logprobs=verdict.logprobs and verdict.logprobs[: len(token_ids)],
        finish_reason=request.finish_reason,
        step=step,
        draft=_verified_draft(request, verdict),
        prompt_logprobs=request.prefill.prompt_logprobs if request.num_steps == 1 else (),
        stop_reason=request.stop_reason,
    )


def _verified_draft(request: Request, verdict: Verdict) -> VerifiedDraft | None:
    """Return the verified draft, if there was one and it should be reported."""
    draft = request.step.draft
    if not request.speculation.report_drafts or draft is EMPTY_DRAFT:
        return None
    return VerifiedDraft(draft.tree, draft.confidences, verdict.accepted_nodes)


def _observe_step(metrics: Metrics, request: Request, step: StepStats, now: float) -> None:
    is_first = request.num_steps == 1
    metrics.observe_step(step, is_first=is_first)
    if is_first:
        times = request.timeline
        times.first_token_at = now
        seconds = now - times.submitted_at, now - times.admitted_at
        metrics.observe_first_token(*seconds, request.num_prompt_tokens, step.num_cached_tokens)


def _trace_step(
    tracer: Tracer, request: Request, call: VerifyCall, step: StepStats, now: float
) -> None:
    """Trace a step in the lane of its request's slot."""
    lane, started, ended = f"request slot {request.slot}", call.started_at, call.ended_at
    about: dict[str, Argument] = {
        "request": request.request_id,
        "draft_tokens": step.num_draft_tokens,
        "tree_nodes": step.num_tree_nodes,
        "accepted": step.num_accepted_tokens,
        "committed": step.num_committed_tokens,
        "fallback": step.fallback,
        "wasted_draft_tokens": step.num_wasted_draft_tokens,
    }
    times = request.step
    tracer.span(lane, "step", times.started_at, now, None, about)
    if times.drafting_seconds:
        tracer.span(lane, "wait for draft", times.started_at, times.ready_at, "yellow")
    tracer.span(lane, "verify", started, ended, "good")
    if step.pre_draft is not None:
        colour: Colour = "good" if step.pre_draft == "hit" else "bad"
        tracer.span(lane, f"pre-draft {step.pre_draft}", started, ended, colour)
    tracer.span("coordinator", "commit", ended, now, None, {"request": about["request"]})


def bind_gauges(
    metrics: Metrics,
    target: TargetInfo,
    admission: Admission,
    pool: DrafterPool | None,
    pages: Pages,
    busy: Mapping[str, BusyTime],
) -> None:
    """Connect the series of load and time to the coordinator's state. `busy`: by role."""
    metrics.running.read = lambda: admission.num_running - pages.num_waiting
    metrics.max_running.read = lambda: target.max_sequences
    metrics.waiting.read = lambda: admission.num_waiting + pages.num_waiting
    metrics.max_waiting.read = lambda: admission.max_waiting
    metrics.kv_cache_usage.read = lambda: pages.num_used / pages.num_all
    metrics.pages.read = lambda: 0.0 if pages.num_all == math.inf else pages.num_all
    metrics.pages_used.read = lambda: pages.num_used
    metrics.pages_shared.read = lambda: pages.num_shared
    metrics.preemptions.read = lambda: {(): pages.num_preemptions}
    metrics.reread_tokens.read = lambda: {(): pages.num_reread_tokens}
    metrics.active_seconds.read = lambda: {(): admission.active.seconds(time.monotonic())}
    metrics.busy_seconds.read = lambda: {
        (role,): time_of.seconds(time.monotonic()) for role, time_of in busy.items()
    }
    if pool is not None:
        metrics.drafters.read = lambda: pool.num_available
        metrics.all_drafters.read = lambda: pool.num_expected
