"""Request: a prompt and all that happens to it. Only the coordinator and its stages touch one."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from diffuspec.algorithm.draft_tree import cut_draft
from diffuspec.control.draft_length import DraftLength
from diffuspec.control.outcomes import OutcomeRanking
from diffuspec.coordinator.draft_terms import DraftTerms
from diffuspec.coordinator.early_draft import EarlyDraft
from diffuspec.coordinator.lifecycle import Lifecycle, State, StepTimes
from diffuspec.coordinator.outputs import Outputs
from diffuspec.coordinator.pre_drafts import PreDrafts
from diffuspec.coordinator.prefix import Prefix
from diffuspec.coordinator.prompt_scoring import PromptScoring
from diffuspec.coordinator.reading import Reading
from diffuspec.coordinator.state_feed import StateFeed
from diffuspec.coordinator.validation import check_draft
from diffuspec.core.interfaces import RequestStatus, TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import (
    EMPTY_DRAFT,
    NO_TOKENS,
    Draft,
    DraftRequest,
    FinishReason,
    TokenIds,
    TokenLogprobs,
    Verdict,
    VerifiedDraft,
    VerifyRequest,
)
from diffuspec.telemetry import context
from diffuspec.telemetry.logs import about
from diffuspec.telemetry.metrics import RequestTimes
from diffuspec.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from diffuspec.coordinator.auto_drafter import AutoDrafter
    from diffuspec.coordinator.draft_lane import DraftLane

logger = logging.getLogger(__name__)


class Request:
    """One request: its tokens, its coming step, its place in the stages, and its outputs."""

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        draft_length: DraftLength,
        eos_token_ids: tuple[int, ...],
        detokenizer: Detokenizer | None = None,
        client_request_id: str | None = None,
        committed_token_ids: TokenIds = NO_TOKENS,
        drafter: str = "",
    ) -> None:
        """Begin after `committed_token_ids`, output of an earlier run that is not emitted again.

        Raises InvalidRequestError if they end the request already.
        """
        self.request_id = request_id  # unique within the coordinator
        self.client_request_id = client_request_id  # given by the caller, perhaps not unique
        self._traceparent = context.traceparent.get()
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling = sampling
        self.draft_length = draft_length
        self.outputs = Outputs()
        self.lifecycle = Lifecycle()
        self.timeline = RequestTimes(submitted_at=self.lifecycle.since)
        self.slot = 0  # lowest number that no other running request had at admission
        self.is_resumed = bool(len(committed_token_ids))

        self.draft: Draft = EMPTY_DRAFT  # of the coming step
        self.num_draft_tokens = 0  # asked of the drafter for the coming step
        self.early: EarlyDraft | None = None
        self.fallback: str | None = None  # why the coming step has no draft although it should
        self.times = StepTimes()

        self.drafter = drafter  # name of the drafters that may draft for it
        self.lane: DraftLane | None = None  # of the one that does
        self.is_known_to_drafter = False  # that one has read its prompt
        self.auto: AutoDrafter | None = None  # changes the drafter between steps
        self.pre_drafts: PreDrafts | None = None  # of the latest verification
        self.ranking: OutcomeRanking | None = None  # of its outcomes

        self.feed = StateFeed()  # of hidden states, to its drafter

        self.num_steps = 0  # verdicts committed by this coordinator
        self.is_in_verifier = False  # part of a verification that has not returned
        self.stalled_since: float | None = None  # begin of the verifier's outage
        self.num_outages = 0  # the verifier's, up to which `reading` is right

        self._prefix = Prefix(
            prompt_token_ids, committed_token_ids, sampling, eos_token_ids, detokenizer
        )
        scoring = None
        if sampling.prompt_logprobs is not None and not self.is_resumed:
            scoring = PromptScoring(prompt_token_ids, sampling.prompt_logprobs)
        self.reading = Reading(request_id, self._prefix, scoring)
        self._speculation = speculation
        self._terms = DraftTerms(request_id, self.num_prompt_tokens, sampling, speculation)

    # ---- tokens

    @property
    def prefix(self) -> TokenIds:
        """Prompt and committed tokens, read-only."""
        return self._prefix.token_ids

    @property
    def num_tokens(self) -> int:
        """Tokens of the prefix."""
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

    def commit(self, verdict: Verdict) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Append the verdict's tokens up to the first that ends the request.

        Returns the tokens kept and the text each one released; sets finish_reason.
        """
        pieces = self._prefix.append(verdict.token_ids)
        self.reading.finish()
        self.num_steps += 1
        return verdict.token_ids[: len(pieces)], tuple(pieces)

    # ---- state

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def about(self) -> dict[str, str]:
        """The `extra` of a log line about this request."""
        return about(self.client_request_id or self.request_id, self._traceparent)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended: finished, failed or aborted."""
        return self.lifecycle.state == "finished"

    def enter(self, state: State, waits_for: str) -> None:
        self.lifecycle.enter(state, waits_for)

    def status(self, now: float) -> RequestStatus:
        return RequestStatus(
            request_id=self.request_id,
            state=self.lifecycle.state,
            seconds_in_state=now - self.lifecycle.since,
            waits_for=self.lifecycle.waits_for,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
        )

    def close(self, reason: str) -> None:
        """Enter the finished state; log id, counts, reason and times, but no text."""
        self.enter("finished", "nothing")
        spent = ", ".join(f"{state} {s:.3f} s" for state, s in self.lifecycle.seconds.items())
        sizes = self.num_prompt_tokens, self.num_output_tokens
        message = "request %s: %d prompt tokens, %d output tokens, %s (%s)"
        logger.info(message, self.request_id, *sizes, reason, spent, extra=self.about)

    # ---- drafting

    @property
    def num_outcomes(self) -> int | Literal["auto"]:
        """Outcomes of a verification that may be pre-drafted."""
        return self._speculation.num_outcomes

    def plan_draft(self) -> int:
        """Decide and return the length of the next draft: at most what may still be committed."""
        room = self._room()
        num_unread = 0 if self.is_known_to_drafter else self.num_tokens
        length = self.draft_length.num_draft_tokens(room, num_unread) if room > 0 else 0
        self.num_draft_tokens = length
        return length

    def plan_pre_drafts(self) -> int:
        """Return the length of pre-drafts for the coming verdict; 0: none are wanted."""
        room = self._room(num_more=1)
        return self.draft_length.pre_draft_length(room) if room > 0 else 0

    def length_after(self, token_ids: Collection[int], planned: int) -> int:
        """Return `planned`, reduced to the tokens that may be committed after these.

        0: they end the request, or leave no room for a draft.
        """
        if self._prefix.is_ended_by(token_ids):
            return 0
        return max(min(planned, self._room(num_more=len(token_ids))), 0)

    def _room(self, num_more: int = 0) -> int:
        """Return how many draft tokens may still be committed after `num_more` other tokens.

        The target's own token of the step is not counted.
        """
        return self._prefix.num_left - num_more - 1

    def plan_early_draft(self) -> None:
        """Ask for the planned draft, but take the coming step without it."""
        self.early = EarlyDraft(self.draft_request())

    def draft_request(self, max_state_bytes: int = 0) -> DraftRequest:
        """Return the request for the planned draft, with hidden states if the drafter wants any.

        max_state_bytes: room in the message; 0: send none, since the answer will not be noted.
        """
        if self.early is not None:
            request = self.early.request
        else:
            request = self._terms.request(self.prefix, self.num_draft_tokens)
        states = self.feed.to_send(max_state_bytes) if max_state_bytes else None
        return request if states is None else replace(request, states=states)

    def draft_request_after(self, token_ids: Collection[int], length: int) -> DraftRequest:
        """Return the request for a draft in case these tokens are committed."""
        prefix = np.concatenate([self.prefix, np.array([*token_ids], np.int32)])
        return self._terms.request(prefix, length)

    def note_states(self, draft: Draft) -> None:
        """Note which hidden states the drafter lacks; have the target read lost ones again."""
        first_lost = self.feed.answered(draft.states_wanted)
        if first_lost is not None:
            self.reading.num_read = min(self.reading.num_read, first_lost)

    def take_draft(self, draft: Draft, target: TargetInfo) -> None:
        """Keep the part of a draft worth verifying. Raises InvalidRequestError if it is wrong."""
        check_draft(draft, min(self._speculation.max_nodes, target.max_tree_nodes), target)
        self.draft = self.draft_length.trim(cut_draft(draft, self.num_draft_tokens))
        self.fallback = None

    def take_early_draft(self, target: TargetInfo) -> bool:
        """Keep the part of the early draft below the tokens committed since; see take_draft.

        Returns whether there is such a part.
        """
        assert self.early is not None
        early, self.early = self.early, None
        rest = early.rest(self.prefix, target)
        if not rest.tree.num_nodes:
            return False
        self.num_draft_tokens = early.request.num_draft_tokens - early.num_since(self.prefix)
        self.take_draft(rest, target)
        return True

    def take_pre_draft(self, draft: Draft, length: int, target: TargetInfo) -> None:
        """Keep a pre-draft of this length; see take_draft."""
        self.num_draft_tokens = length
        self.draft_length.use_pre_draft(length)
        self.take_draft(draft, target)

    def skip_draft(self, reason: str | None) -> None:
        """Take the coming step without a draft. `reason`: see StepStats.fallback."""
        self.draft, self.num_draft_tokens, self.fallback = EMPTY_DRAFT, 0, reason

    # ---- verifying

    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Return the prompt's log-probabilities with the first step, later nothing."""
        return self.reading.prompt_logprobs if self.num_steps == 1 else ()

    def verify_request(self, max_read_tokens: int) -> VerifyRequest:
        """Return the verifier's request for the coming step; it may read the prefix first."""
        return VerifyRequest(
            self.request_id,
            self.prefix,
            self.num_prompt_tokens,
            self.draft.tree,
            self.sampling,
            self.feed.wanted,
            self.reading.limit(max_read_tokens),
        )

    def verified_draft(self, verdict: Verdict) -> VerifiedDraft | None:
        """Return the draft that was verified, if there was one and it is to be reported."""
        draft = self.draft
        if not self._speculation.report_drafts or draft is EMPTY_DRAFT:
            return None
        return VerifiedDraft(draft.tree, draft.confidences, verdict.accepted_nodes)

    def adapt(self, verdict: Verdict) -> None:
        """Let the controllers learn from the outcome of a drafted step."""
        if self.draft is EMPTY_DRAFT:
            return
        self.draft_length.observe(self.draft, verdict)
        self._terms.observe(self.draft, verdict)
