"""What a step came to, read off its ticket, its verdict and the calls that made them."""

from __future__ import annotations

from dataclasses import dataclass

from diffuspec.algorithm.draft_tree import depths
from diffuspec.coordinator.pre_drafts import Foresight
from diffuspec.coordinator.ticket import Ticket
from diffuspec.coordinator.verify_calls import VerdictBatch
from diffuspec.core.types import StepStats, Verdict
from diffuspec.telemetry.trace import Argument, Colour, Tracer


@dataclass(frozen=True, slots=True)
class StepEnd:
    """All there is to know of a step that ends now."""

    ticket: Ticket
    verdict: Verdict
    batch: VerdictBatch  # that the verdict was made in
    foresight: Foresight | None
    num_committed_tokens: int  # after cutting at EOS, stop or max_tokens
    now: float
    verify_busy_seconds: float  # of the verifier until now
    draft_busy_seconds: float  # of the drafter until now

    def stats(self) -> StepStats:
        sequence, draft, times = self.ticket.sequence, self.ticket.sequence.draft, self.ticket.times
        seconds = self.now - times.started_at
        verify_busy = self.verify_busy_seconds - times.verify_busy_seconds
        draft_busy = self.draft_busy_seconds - times.draft_busy_seconds
        ahead = self.foresight
        return StepStats(
            num_draft_tokens=sequence.num_draft_tokens,
            num_tree_nodes=draft.tree.num_nodes,
            num_accepted_tokens=min(self.verdict.num_accepted_tokens, self.num_committed_tokens),
            num_committed_tokens=self.num_committed_tokens,
            tree_depth=max(depths(draft.tree), default=0),
            draft_seconds=draft.draft_seconds,
            search_seconds=draft.search_seconds,
            verify_seconds=times.reading_seconds + self.verdict.verify_seconds,
            step_seconds=seconds,
            fallback=sequence.fallback,
            transport_seconds=(
                draft.transport_seconds
                + times.reading_transport_seconds
                + self.verdict.transport_seconds
            ),
            pre_draft=None if ahead is None or sequence.is_finished else ahead.result,
            num_wasted_draft_tokens=0 if ahead is None else ahead.num_wasted_tokens,
            verify_idle_seconds=max(seconds - verify_busy, 0.0),
            draft_idle_seconds=max(seconds - draft_busy, 0.0),
        )

    def trace(self, tracer: Tracer, step: StepStats) -> None:
        """Show the step in the lane of its request's slot: the draft, then the verification."""
        ticket, times, batch = self.ticket, self.ticket.times, self.batch
        lane = f"request slot {ticket.slot}"
        about: dict[str, Argument] = {
            "request": ticket.sequence.request_id,
            "draft_tokens": step.num_draft_tokens,
            "tree_nodes": step.num_tree_nodes,
            "accepted": step.num_accepted_tokens,
            "committed": step.num_committed_tokens,
            "fallback": step.fallback,
            "wasted_draft_tokens": step.num_wasted_draft_tokens,
        }
        ended = batch.started_at + batch.seconds
        tracer.span(lane, "step", times.started_at, self.now, None, about)
        if times.drafting_seconds:
            tracer.span(lane, "wait for draft", times.started_at, times.ready_at, "yellow")
        tracer.span(lane, "verify", batch.started_at, ended, "good")
        if step.pre_draft is not None:
            colour: Colour = "good" if step.pre_draft == "hit" else "bad"
            tracer.span(lane, f"pre-draft {step.pre_draft}", batch.started_at, ended, colour)
        tracer.span("coordinator", "commit", ended, self.now, None, {"request": about["request"]})
