"""Request: a prompt and everything that happens to it. Only the scheduler's loop changes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from diffuspec.adl.acceptance import Expectation
from diffuspec.adl.policies import DrafterChoice, FixedLength, Policy
from diffuspec.algorithm.draft_tree import cut_draft, draft_after
from diffuspec.algorithm.drafter_weight import DrafterWeight
from diffuspec.algorithm.outcomes import OutcomeRanking
from diffuspec.algorithm.validation import check_draft
from diffuspec.core.interfaces import RequestStatus, TargetInfo
from diffuspec.core.losses import SUSPECT_LOSSES, Losses, on_begin
from diffuspec.core.outputs import Outputs
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams, SpeculationParams
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
from diffuspec.scheduler.step import EarlyDraft, PreDrafts, Prefill, Progress, Step
from diffuspec.telemetry import context
from diffuspec.telemetry.logs import about
from diffuspec.telemetry.metrics import RequestTimes
from diffuspec.text.detokenizer import Detokenizer
from diffuspec.text.prefix import Prefix
from diffuspec.text.prompt_scoring import PromptScoring

logger = logging.getLogger(__name__)


class Request:
    """One request: its tokens, its next step, and its outputs."""

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        eos_token_ids: tuple[int, ...],
        *,
        policy: Policy | None = None,
        expect: Callable[[str], Expectation] | None = None,
        detokenizer: Detokenizer | None = None,
        client_request_id: str | None = None,
        committed_token_ids: TokenIds = NO_TOKENS,
        num_losses: int = 0,
        drafter: str = "",
    ) -> None:
        """Begin after `committed_token_ids`, output of an earlier run that is not emitted again.

        `expect` returns the expectation of a drafter's drafts, given its name. `num_losses`: see
        Losses.

        Raises InvalidRequestError if the committed tokens already end the request, and
        FatalRequestError after too many losses.
        """
        self.request_id = request_id  # unique within the coordinator
        # the caller's id, which several requests may share
        self.client_request_id = client_request_id
        self.key_name = context.key_name.get()
        self._traceparent = context.traceparent.get()
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling = sampling
        self.speculation = speculation
        self.policy = policy or FixedLength(speculation.num_draft_tokens)
        self.outputs = Outputs()
        self.slot = 0  # lowest number not used by another running request at admission
        self.is_resumed = bool(len(committed_token_ids))
        self.progress = Progress()
        self.timeline = RequestTimes(submitted_at=self.progress.since)

        self.step = Step()
        self.num_steps = 0  # verdicts committed by this coordinator
        self.early: EarlyDraft | None = None
        self.pre_drafts: PreDrafts | None = None  # pre-drafts of the latest verification
        self.ranking: OutcomeRanking | None = None  # ranks outcomes
        self.drafter = drafter  # name of the drafters that may draft for it
        self.choice: DrafterChoice | None = None  # chooses the drafter for each step
        self.is_first_draft = False  # its drafter has read the prompt for this step's draft
        self.is_in_verifier = False  # a verification with it has not returned
        self.stalled_since: float | None = None  # start of the verifier's outage
        self.num_outages = 0  # outages of the verifier that `prefill` takes into account

        self._prefix = Prefix(
            prompt_token_ids, committed_token_ids, sampling, eos_token_ids, detokenizer
        )
        self.losses = Losses(num_losses, self.num_tokens)  # losses of coordinators and verifiers
        self.on_begin = on_begin.get()
        self.kills_drafters = False  # drafters were lost repeatedly while they drafted for it
        self._num_draft_losses = 0
        scoring = None
        if sampling.prompt_logprobs is not None and not self.is_resumed:
            num_top, salt = sampling.prompt_logprobs, sampling.cache_salt
            scoring = PromptScoring(prompt_token_ids, num_top, salt)
        self.prefill = Prefill(
            request_id, self._prefix, scoring, is_salted=sampling.cache_salt is not None
        )
        self.feed = StateFeed()  # hidden states for its drafter
        self._expect = expect
        self._expectations: dict[str, Expectation] = {}  # by drafter
        self._prediction = np.array(speculation.prediction, np.int32)
        self._weight = DrafterWeight(speculation.drafter_weight)

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

    def close(self, reason: str) -> None:
        """Enter the finished state; log id, counts, reason and times, but no text."""
        self.progress.enter("finished", "nothing")
        sizes = self.num_prompt_tokens, self.num_output_tokens
        message = "request %s: %d prompt tokens, %d output tokens, %s (%s)"
        logger.info(message, self.request_id, *sizes, reason, self.progress, extra=self.about)

    # ---- drafting

    @property
    def last_length(self) -> int:
        """Length of the next draft if the policy determines it, else of the latest draft."""
        return self.policy.num_draft_tokens or self.step.num_draft_tokens

    @property
    def expectation(self) -> Expectation:
        """The expected value of its drafter's drafts."""
        if self.drafter not in self._expectations:
            assert self._expect is not None
            self._expectations[self.drafter] = self._expect(self.drafter)
        return self._expectations[self.drafter]

    def on_draft_loss(self) -> None:
        """Count the loss of a drafter while it drafted for this request; may end its drafts."""
        self._num_draft_losses += 1
        if self._num_draft_losses >= SUSPECT_LOSSES and not self.kills_drafters:
            logger.warning("%s goes on without drafts: drafters were lost at it", self.request_id)
            self.kills_drafters, self.policy, self.choice = True, FixedLength(0), None

    def draft_request(self, length: int, max_state_bytes: int = 0) -> DraftRequest:
        """Return the request for a draft of `length` tokens to verify.

        max_state_bytes: room in the message for hidden states, if the drafter reads them.
        """
        request = self._draft_request(self.prefix, length)
        states = self.feed.to_send(max_state_bytes) if max_state_bytes else None
        return request if states is None else replace(request, states=states)

    def draft_request_after(self, token_ids: Collection[int], length: int) -> DraftRequest:
        """Return the request for a draft to be used if these tokens are committed."""
        prefix = np.concatenate([self.prefix, np.array([*token_ids], np.int32)])
        return self._draft_request(prefix, length)

    def _draft_request(self, prefix: TokenIds, length: int) -> DraftRequest:
        """Return a draft request. With pre-drafting it also drafts the position of the bonus."""
        speculation = self.speculation
        looks_ahead = speculation.num_outcomes != 0
        return DraftRequest(
            request_id=self.request_id,
            prefix=prefix,
            num_draft_tokens=min(length + looks_ahead, MAX_DRAFT_TOKENS),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=self._weight.value,
            sampling=self.sampling,
            num_alternatives=MAX_ALTERNATIVES if looks_ahead else 0,
            num_prompt_tokens=self.num_prompt_tokens,
            prediction=self._prediction,
        )

    def note_states(self, draft: Draft) -> None:
        """Record which hidden states the drafter lacks; let the target recompute lost ones."""
        first_lost = self.feed.answered(draft.states_wanted)
        if first_lost is not None:
            self.prefill.num_read = min(self.prefill.num_read, first_lost)

    def take_draft(self, draft: Draft, length: int, target: TargetInfo) -> None:
        """Settle the next step with a draft of `length` tokens.

        Raises InvalidRequestError if it is invalid.
        """
        check_draft(draft, min(self.speculation.max_nodes, target.max_tree_nodes), target)
        step = self.step
        step.draft, step.num_draft_tokens = cut_draft(draft, length), length
        if self.policy.num_draft_tokens is None and step.draft.tree.num_nodes:
            step.reach = self.expectation.observe_draft(step.draft, length)
            step.num_expected = sum(step.reach)
        step.is_settled, step.fallback = True, None

    def take_early_draft(self, target: TargetInfo) -> None:
        """Settle the next step with what is left of an early draft after the committed tokens.

        If no node is left, the step stays open. See take_draft.
        """
        early, self.early = self.early, None
        assert early is not None and early.draft is not None
        check_draft(early.draft, self.speculation.max_nodes, target)
        rest = draft_after(early.draft, self.prefix[early.num_tokens :].tolist())
        if rest.tree.num_nodes:
            length = max(early.length - (self.num_tokens - early.num_tokens), 1)
            self.take_draft(rest, min(length, self.room), target)
        elif self.policy.num_draft_tokens is None and early.draft.tree.num_nodes:
            # Even a draft that does not fit tells how sure of this request the drafter is.
            self.expectation.observe_draft(early.draft, early.length)

    def keep_nodes(self, num_nodes: int) -> None:
        """Verify only the likeliest nodes of the draft."""
        whole = self.step.num_expected
        self.step.cut(num_nodes)
        self.expectation.observe_cut(num_nodes, self.step.num_expected, whole)

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
        """Let policy, expectation and weight learn from the outcome of a step."""
        draft = self.step.draft
        if draft is EMPTY_DRAFT:
            return
        self.policy.observe(draft, verdict)
        if self.policy.num_draft_tokens is None:
            self.expectation.observe_verdict(draft, verdict)
        self._weight.observe(draft, verdict)
