"""Request: a prompt and everything that happens to it. Only the scheduler's loop changes it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from diffuspec.algorithm.draft_tree import cut_draft
from diffuspec.algorithm.drafter_weight import DrafterWeight
from diffuspec.algorithm.validation import check_draft
from diffuspec.core.interfaces import RequestStatus, TargetInfo
from diffuspec.core.losses import SUSPECT_LOSSES, Losses, on_begin
from diffuspec.core.outputs import Outputs
from diffuspec.core.pages import num_pages_of
from diffuspec.core.params import (
    MAX_DRAFT_TOKENS,
    MAX_OUTCOMES,
    SamplingParams,
    SpeculationParams,
)
from diffuspec.core.state_feed import StateFeed
from diffuspec.core.types import (
    EMPTY_DRAFT,
    MAX_ALTERNATIVES,
    NO_TOKENS,
    Draft,
    DraftRequest,
    FinishReason,
    TokenIds,
    Verdict,
    VerifyRequest,
)
from diffuspec.scheduler.prefill import Prefill
from diffuspec.scheduler.step import PreDrafts, Progress, Step
from diffuspec.speculation.acceptance import Acceptance
from diffuspec.speculation.policies import FixedLength, Policy
from diffuspec.speculation.values import CallState, DraftTicket, PossibleOutcome, RequestView
from diffuspec.telemetry import context
from diffuspec.telemetry.logs import about
from diffuspec.telemetry.metrics import RequestTimes
from diffuspec.text.detokenizer import Detokenizer
from diffuspec.text.prefix import Prefix
from diffuspec.text.prompt_scoring import PromptScoring

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submission:
    """What a caller asks for.

    The answer continues after `committed_token_ids`, output of an earlier run that is not emitted
    again. `num_losses`: see Losses.
    """

    prompt_token_ids: TokenIds
    sampling: SamplingParams
    speculation: SpeculationParams
    detokenizer: Detokenizer | None = None
    client_request_id: str | None = None  # the caller's id, which several requests may share
    committed_token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    num_losses: int = 0


class Request:
    """One request: its tokens, its next step, and its outputs."""

    def __init__(
        self,
        request_id: str,
        wanted: Submission,
        eos_token_ids: tuple[int, ...],
        policy: Policy,
        acceptance: Acceptance,
        drafter: str = "",
    ) -> None:
        """`request_id`: unique within the coordinator. `drafter`: the name of its drafters.

        Raises InvalidRequestError if the committed tokens already end the request, and
        FatalRequestError after too many losses.
        """
        self.request_id = request_id
        self.client_request_id = wanted.client_request_id
        self.key_name = context.key_name.get()
        self._traceparent = context.traceparent.get()
        self.sampling = wanted.sampling
        self.speculation = wanted.speculation
        self.num_prompt_tokens = len(wanted.prompt_token_ids)
        self.is_resumed = len(wanted.committed_token_ids) > 0
        self._prefix = Prefix(
            wanted.prompt_token_ids,
            wanted.committed_token_ids,
            wanted.sampling,
            eos_token_ids,
            wanted.detokenizer,
        )
        self.outputs = Outputs()
        self.progress = Progress()
        self.timeline = RequestTimes(submitted_at=self.progress.since)
        self.slot = 0  # lowest number not used by another running request at admission
        self.on_begin = on_begin.get()

        self.state: CallState = "ready"  # while it runs
        self.step = Step()
        self.num_steps = 0  # verdicts committed by this coordinator
        self.is_in_verifier = False  # a verification with it has not returned
        self.stalled_since: float | None = None  # start of the verifier's outage
        is_salted = wanted.sampling.cache_salt is not None
        self.prefill = Prefill(request_id, self._prefix, self._scoring(wanted), is_salted=is_salted)
        # coordinators and verifiers that were lost while they worked on it
        self.losses = Losses(wanted.num_losses, self.num_tokens)

        self.drafter = drafter
        self.home: int | None = None  # number of the drafter that drafts for it
        self.policy = policy
        self.acceptance = acceptance
        self.pre_drafts: PreDrafts | None = None  # pre-drafts of the latest verification
        self.feed = StateFeed()  # hidden states for its drafter
        self._prediction = np.array(wanted.speculation.prediction, np.int32)
        self._weight = DrafterWeight(wanted.speculation.drafter_weight)
        self._num_draft_losses = 0

    def _scoring(self, wanted: Submission) -> PromptScoring | None:
        num_top = wanted.sampling.prompt_logprobs
        if num_top is None or self.is_resumed:
            return None
        return PromptScoring(wanted.prompt_token_ids, num_top, wanted.sampling.cache_salt)

    # ---- tokens

    @property
    def prefix(self) -> TokenIds:
        """Prompt and committed tokens, read-only."""
        return self._prefix.token_ids

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the prefix."""
        return self._prefix.num_tokens

    @property
    def num_output_tokens(self) -> int:
        return self._prefix.num_tokens - self.num_prompt_tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        """None: more tokens may be committed."""
        return self._prefix.finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self._prefix.stop_reason

    @property
    def room(self) -> int:
        """Drafted tokens that may still be committed, not counting the target's own token."""
        return self._prefix.num_left - 1

    def room_after(self, token_ids: Collection[int]) -> int:
        """Room once these tokens are committed; 0 if they end the request."""
        if self._prefix.is_ended_by(token_ids):
            return 0
        return max(self.room - len(token_ids), 0)

    def commit(self, verdict: Verdict) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Append the verdict's tokens up to the first that ends the request.

        Returns the appended tokens and the text that each one released; sets finish_reason.
        """
        pieces = self._prefix.append(verdict.token_ids)
        self.prefill.finish()
        self.num_steps += 1
        return verdict.token_ids[: len(pieces)], tuple(pieces)

    @property
    def num_pages(self) -> int:
        """Pages of the target's cache that hold its tokens."""
        return num_pages_of(self.prefill.num_read)

    # ---- state

    @property
    def about(self) -> dict[str, str]:
        """The `extra` fields of a log line about this request."""
        return about(self.client_request_id or self.request_id, self._traceparent)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended: finished, failed or aborted."""
        return self.progress.state == "finished"

    def status(self, now: float) -> RequestStatus:
        progress = self.progress
        return RequestStatus(
            request_id=self.request_id,
            state=progress.state,
            seconds_in_state=now - progress.since,
            waits_for=progress.waits_for,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
        )

    def view(self, home: int | None, held_by: Sequence[int]) -> RequestView:
        """Return what decisions depend on; see RequestView for the arguments."""
        step, ahead, length = self.step, self.pre_drafts, self.policy.num_draft_tokens
        is_drafted = self.state == "verifying" and step.ticket is not None
        outcomes = ahead.untried if ahead is not None and is_drafted and length != 0 else ()
        return RequestView(
            self.request_id,
            self.state,
            self.drafter,
            home,
            held_by,
            self.num_tokens,
            self.prefill.num_unread,
            self.room,
            length,
            self.speculation.num_outcomes == "auto",
            self.losses.is_suspect,
            self.acceptance.prospects,
            0 if length == 0 else self.speculation.max_nodes,
            step.is_settled,
            step.ticket,
            step.reach,
            outcomes,
        )

    def close(self, reason: str) -> None:
        """Enter the finished state; log id, counts, reason and times, but no text."""
        self.progress.enter("finished", "nothing")
        sizes = self.num_prompt_tokens, self.num_output_tokens
        message = "request %s: %d prompt tokens, %d output tokens, %s (%s)"
        logger.info(message, self.request_id, *sizes, reason, self.progress, extra=self.about)

    # ---- drafting

    def on_draft_loss(self) -> None:
        """Count the loss of a drafter while it drafted for this request; may end its drafts."""
        self._num_draft_losses += 1
        if self._num_draft_losses == SUSPECT_LOSSES:
            logger.warning("%s goes on without drafts: drafters were lost at it", self.request_id)
            self.policy = FixedLength(0)

    def draft_request(self, ticket: DraftTicket, max_state_bytes: int = 0) -> DraftRequest:
        """Return the request for a draft: after the prefix, or after an outcome's tokens.

        max_state_bytes: room in the message for hidden states, if the drafter reads them. With
        pre-drafting the position of the bonus token is drafted, too.
        """
        prefix, speculation = self.prefix, self.speculation
        if ticket.outcome is not None:
            committed = ticket.outcome.committed(self.step.draft.tree)
            prefix = np.concatenate([prefix, np.array(committed, np.int32)])
        looks_ahead = speculation.num_outcomes != 0
        request = DraftRequest(
            request_id=self.request_id,
            prefix=prefix,
            num_draft_tokens=min(ticket.length + looks_ahead, MAX_DRAFT_TOKENS),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=self._weight.value,
            sampling=self.sampling,
            num_alternatives=MAX_ALTERNATIVES if looks_ahead else 0,
            num_prompt_tokens=self.num_prompt_tokens,
            prediction=self._prediction,
        )
        states = self.feed.to_send(max_state_bytes) if max_state_bytes else None
        return request if states is None else replace(request, states=states)

    def note_states(self, draft: Draft) -> None:
        """Record which hidden states the drafter lacks; let the target recompute lost ones."""
        first_lost = self.feed.answered(draft.states_wanted)
        if first_lost is not None:
            self.prefill.num_read = min(self.prefill.num_read, first_lost)

    def take_draft(self, draft: Draft, ticket: DraftTicket, target: TargetInfo) -> None:
        """Settle the next step with a draft. Raises InvalidRequestError if it is invalid."""
        check_draft(draft, min(self.speculation.max_nodes, target.max_tree_nodes), target)
        step, length = self.step, ticket.length
        step.draft, step.ticket = cut_draft(draft, length), ticket
        if step.draft.tree.num_nodes:
            step.reach = self.acceptance.observe_draft(step.draft, length)
        step.is_settled, step.fallback = True, None

    def keep_nodes(self, num_nodes: int) -> None:
        """Verify only the likeliest nodes of the draft."""
        whole = sum(self.step.reach)
        self.step.cut(num_nodes)
        self.acceptance.observe_cut(num_nodes, sum(self.step.reach), whole)

    def expect_outcomes(self) -> None:
        """Begin to pre-draft for the likeliest outcomes of the verification that begins."""
        draft, limit = self.step.draft, self.speculation.num_outcomes
        outcomes = []
        for ranked in self.acceptance.rank(draft, self.prefix):
            room = self.room_after(ranked.outcome.committed(draft.tree))
            if room:
                outcomes.append(PossibleOutcome(ranked.outcome, ranked.probability, room))
        most = MAX_OUTCOMES if limit == "auto" else limit
        self.pre_drafts = PreDrafts(outcomes[:most])

    # ---- verifying

    def verify_request(self, max_read_tokens: int) -> VerifyRequest:
        """Return the verifier's request for the next step; it may first read the prefix."""
        return VerifyRequest(
            self.request_id,
            self.prefix,
            self.num_prompt_tokens,
            self.step.draft.tree,
            self.sampling,
            self.feed.wanted,
            self.prefill.limit(max_read_tokens),
        )

    def adapt(self, verdict: Verdict) -> None:
        """Let policy, acceptance and weight learn from the outcome of a step."""
        draft = self.step.draft
        if draft is not EMPTY_DRAFT:
            self.policy.observe(draft, verdict)
            self.acceptance.observe_verdict(draft, verdict)
            self._weight.observe(draft, verdict)
