"""Request: a prompt and all that happens to it. Only the coordinator and its stages touch one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from diffuspec.algorithm.draft_tree import depths, draft_after, prune_draft
from diffuspec.control.draft_length import DraftLength
from diffuspec.control.drafter_weight import AdaptiveWeight
from diffuspec.control.outcomes import OutcomeRanking
from diffuspec.coordinator.lifecycle import Lifecycle, State
from diffuspec.coordinator.pre_drafts import PreDrafts
from diffuspec.coordinator.prompt_scoring import PromptScoring
from diffuspec.coordinator.state_feed import StateFeed
from diffuspec.coordinator.validation import check_draft
from diffuspec.core.errors import DiffuspecError, InvalidRequestError
from diffuspec.core.interfaces import RequestStatus, TargetInfo
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams, SpeculationParams
from diffuspec.core.types import (
    EMPTY_DRAFT,
    MAX_ALTERNATIVES,
    NO_TOKENS,
    Draft,
    DraftRequest,
    FinishReason,
    RequestOutput,
    TokenIds,
    TokenLogprobs,
    Verdict,
    VerifiedDraft,
    VerifyRequest,
)
from diffuspec.telemetry.logs import about
from diffuspec.telemetry.metrics import RequestTimes
from diffuspec.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from diffuspec.coordinator.auto_drafter import AutoDrafter
    from diffuspec.coordinator.draft_lane import DraftLane

logger = logging.getLogger(__name__)


_FEW_TOKENS = 8  # the target reads them in the time of a decoding step


@dataclass(slots=True)
class StepTimes:
    """The coming step so far. Points in time are time.monotonic()."""

    started_at: float = 0.0  # the previous verdict, or the admission
    verify_busy_seconds: float = 0.0  # of the verifier, in total, when the step began
    draft_busy_seconds: float = 0.0  # of the drafters, in total, when the step began
    ready_at: float = 0.0  # the draft was there, or it was decided to go without one
    drafting_seconds: float = 0.0  # spent waiting for the drafter, transport included
    prefill_seconds: float = 0.0  # of the verifier, on prompt chunks ahead of the step
    prefill_transport_seconds: float = 0.0  # of those chunks, there and back


@dataclass(slots=True)
class EarlyDraft:
    """A draft asked for while the target reads the prompt; its rest serves the second step."""

    request: DraftRequest
    is_asked: bool = False  # a drafter works on it, or has answered
    draft: Draft | None = None


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

        Raises InvalidRequestError when those end the request already.
        """
        self.request_id = request_id  # unique within the coordinator
        self.client_request_id = client_request_id  # the caller's own, perhaps shared; None: none
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling = sampling
        self.draft_length = draft_length
        self.finish_reason: FinishReason | None = None
        self.outputs: asyncio.Queue[RequestOutput | DiffuspecError] = asyncio.Queue()
        self.lifecycle = Lifecycle()
        self.timeline = RequestTimes(submitted_at=self.lifecycle.since)
        self.slot = 0  # the lowest number that was free among the running requests
        self.is_resumed = bool(len(committed_token_ids))

        self.draft: Draft = EMPTY_DRAFT  # of the coming step
        self.num_draft_tokens = 0  # asked of the drafter for the coming step
        self.early: EarlyDraft | None = None
        self.fallback: str | None = None  # why the coming step has no draft although it should
        self.times = StepTimes()

        self.drafter = drafter  # the name of those that draft for it
        self.lane: DraftLane | None = None  # of the drafter that drafts for it
        self.is_known_to_drafter = False  # that drafter has read its prompt
        self.auto: AutoDrafter | None = None  # changes the drafter between steps
        self.pre_drafts: PreDrafts | None = None  # of the latest verification
        self.ranking: OutcomeRanking | None = None  # of its outcomes

        self.feed = StateFeed()  # of hidden states, to its drafter

        self.num_steps = 0  # verdicts committed by this coordinator
        self.num_read = 0  # tokens of the prefix that are in the target's cache
        self.is_in_verifier = False  # part of a verification that has not returned
        self.stalled_since: float | None = None  # the verifier has been unavailable since then
        self.num_outages = 0  # of the verifier, when num_read was last known to be true

        self._speculation = speculation
        self._weight = AdaptiveWeight() if speculation.drafter_weight == "adaptive" else None
        self.scoring: PromptScoring | None = None  # None: the prompt's tokens are not reported
        if sampling.prompt_logprobs is not None and not self.is_resumed:
            self.scoring = PromptScoring(prompt_token_ids, sampling.prompt_logprobs)
        self._detokenizer = detokenizer
        self._stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._stop_ids |= frozenset(eos_token_ids)
        self._begin_tokens(prompt_token_ids, committed_token_ids)

    # ---- tokens

    def _begin_tokens(self, prompt: TokenIds, committed: TokenIds) -> None:
        self._tokens = np.zeros(len(prompt) + self.sampling.max_tokens, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._read_only = self._tokens.view()  # workers hold parts of it
        self._read_only.flags.writeable = False
        self._num_tokens = len(prompt)
        self._append(committed.tolist())
        if self.finish_reason is not None:
            raise InvalidRequestError("the committed tokens end the request already")
        self.num_read = 0

    @property
    def prefix(self) -> TokenIds:
        """Prompt and committed tokens, read-only."""
        return self._read_only[: self._num_tokens]

    @property
    def num_tokens(self) -> int:
        """Tokens of the prefix."""
        return self._num_tokens

    @property
    def num_output_tokens(self) -> int:
        return self._num_tokens - self.num_prompt_tokens

    def commit(self, verdict: Verdict) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Append the verdict's tokens up to the first that ends the request.

        Returns the tokens kept and the text that each released; sets finish_reason.
        """
        pieces = self._append(verdict.token_ids)
        self.num_steps += 1
        return verdict.token_ids[: len(pieces)], tuple(pieces)

    def _append(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text that each token released, up to the first that ends the request."""
        detokenizer, room = self._detokenizer, self.sampling.max_tokens - self.num_output_tokens
        pieces: list[str] = []
        for token_id in token_ids[:room]:
            if token_id in self._stop_ids:
                self.finish_reason = FinishReason.STOP
                pieces.append("")
                break
            pieces.append("" if detokenizer is None else detokenizer.push(token_id))
            if detokenizer is not None and detokenizer.is_stopped:
                self.finish_reason = FinishReason.STOP
                break
        if self.finish_reason is None and len(pieces) == room:
            self.finish_reason = FinishReason.LENGTH
        if self.finish_reason is not None and detokenizer is not None:
            pieces[-1] += detokenizer.finish()
        start, self._num_tokens = self._num_tokens, self._num_tokens + len(pieces)
        self._tokens[start : self._num_tokens] = token_ids[: len(pieces)]
        self.num_read = self._num_tokens - 1  # all but the target's own last token
        return pieces

    # ---- state

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def about(self) -> dict[str, str]:
        """The `extra` of a log line about this request."""
        return about(self.client_request_id or self.request_id)

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
        """Enter the finished state; log the id, the counts, the reason and the times, no text."""
        self.enter("finished", "nothing")
        spent = ", ".join(f"{state} {s:.3f} s" for state, s in self.lifecycle.seconds.items())
        logger.info(
            "request %s: %d prompt tokens, %d output tokens, %s (%s)",
            self.request_id,
            self.num_prompt_tokens,
            self.num_output_tokens,
            reason,
            spent,
            extra=self.about,
        )

    # ---- drafting

    @property
    def num_outcomes(self) -> int | Literal["auto"]:
        """Outcomes of a verification that may be pre-drafted."""
        return self._speculation.num_outcomes

    def plan_draft(self) -> int:
        """Decide the next draft's length: no longer than what may still be committed."""
        room = self._room()
        num_unread = 0 if self.is_known_to_drafter else self.num_tokens
        length = self.draft_length.num_draft_tokens(room, num_unread) if room > 0 else 0
        self.num_draft_tokens = length
        return self.num_draft_tokens

    def plan_pre_drafts(self) -> int:
        """Return the length of pre-drafts for the coming verdict; 0: none are wanted."""
        room = self._room(num_more=1)
        return self.draft_length.pre_draft_length(room) if room > 0 else 0

    def length_after(self, token_ids: Collection[int], planned: int) -> int:
        """Return `planned`, cut to what may be committed after these tokens.

        0: they end the request, or leave no room for a draft.
        """
        if not self._stop_ids.isdisjoint(token_ids):
            return 0
        return max(min(planned, self._room(num_more=len(token_ids))), 0)

    def _room(self, num_more: int = 0) -> int:
        """Draft tokens that may be committed, the target's own excluded, after `num_more`."""
        return self.sampling.max_tokens - self.num_output_tokens - num_more - 1

    def plan_early_draft(self) -> None:
        """Ask for the planned draft, but take the coming step without it."""
        self.early = EarlyDraft(self.draft_request())

    def draft_request(self, max_state_bytes: int = 0) -> DraftRequest:
        """Return what to ask the drafter for the planned draft, with hidden states if it wants any.

        max_state_bytes: what the message has room for; 0: send none, nothing will be answered.
        """
        if self.early is not None:
            request = self.early.request
        else:
            request = self._draft_request(self.prefix, self.num_draft_tokens)
        states = self.feed.to_send(max_state_bytes) if max_state_bytes else None
        return request if states is None else replace(request, states=states)

    def draft_request_after(self, token_ids: Collection[int], length: int) -> DraftRequest:
        """Return what to ask for the case that these tokens are committed."""
        prefix = np.concatenate([self.prefix, np.array([*token_ids], np.int32)])
        return self._draft_request(prefix, length)

    def _draft_request(self, prefix: TokenIds, length: int) -> DraftRequest:
        """One position more is drafted than verified, for the token after a full acceptance."""
        speculation = self._speculation
        is_pre_drafting = speculation.num_outcomes != 0
        weight = self._weight.value if self._weight is not None else speculation.drafter_weight
        assert not isinstance(weight, str)
        return DraftRequest(
            request_id=self.request_id,
            prefix=prefix,
            num_draft_tokens=min(length + is_pre_drafting, MAX_DRAFT_TOKENS),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=weight,
            sampling=self.sampling,
            num_alternatives=MAX_ALTERNATIVES if is_pre_drafting else 0,
            num_prompt_tokens=self.num_prompt_tokens,
        )

    def note_states(self, draft: Draft) -> None:
        """Take what a draft says of hidden states; the target reads again what was lost."""
        first_lost = self.feed.answered(draft.states_wanted)
        if first_lost is not None:
            self.num_read = min(self.num_read, first_lost)

    def take_draft(self, draft: Draft, target: TargetInfo) -> None:
        """Keep the part of a draft worth verifying. Raises InvalidRequestError for a wrong one."""
        check_draft(draft, min(self._speculation.max_nodes, target.max_tree_nodes), target)
        tree, num_draft_tokens = draft.tree, self.num_draft_tokens
        if tree.num_nodes > num_draft_tokens:
            kept = [node for node, depth in enumerate(depths(tree)) if depth <= num_draft_tokens]
            if len(kept) < tree.num_nodes:  # deeper nodes could not be committed
                draft = prune_draft(draft, kept)
        if draft.num_tokens_before_eos > num_draft_tokens:
            draft = replace(draft, num_tokens_before_eos=num_draft_tokens)
        self.draft = self.draft_length.trim(draft)
        self.fallback = None

    def take_early_draft(self, draft: Draft, target: TargetInfo) -> bool:
        """Keep what an early draft holds below the tokens committed since; see take_draft.

        Returns whether there is anything.
        """
        assert self.early is not None
        asked, self.early = self.early.request, None
        check_draft(draft, asked.max_nodes, target)
        since = self.prefix[len(asked.prefix) :].tolist()
        rest = draft_after(draft, since)
        if not rest.tree.num_nodes:
            return False
        self.num_draft_tokens = asked.num_draft_tokens - len(since)
        self.take_draft(rest, target)
        return True

    def take_pre_draft(self, draft: Draft, length: int, target: TargetInfo) -> None:
        """Keep a pre-draft of this length; see take_draft."""
        self.num_draft_tokens = length
        self.draft_length.use_pre_draft(length)
        self.take_draft(draft, target)

    def skip_draft(self, reason: str | None) -> None:
        """Take the coming step without a draft; None: none was due."""
        self.draft, self.num_draft_tokens, self.fallback = EMPTY_DRAFT, 0, reason

    # ---- verifying

    @property
    def num_unread(self) -> int:
        """Tokens of the prefix that the target reads in the coming step; 1 while decoding."""
        return self._num_tokens - self.num_read

    @property
    def is_reading(self) -> bool:
        """Whether the coming step reads a prompt: more than takes the time of decoding."""
        return self.num_unread > _FEW_TOKENS

    def next_chunk(self, max_tokens: int, max_nodes: int = 1) -> VerifyRequest | None:
        """Return the next chunk of the prefix to prefill ahead of the step, if much is unread.

        A prompt that is scored is read in chunks of at most `max_nodes`, up to its end.
        """
        scoring = self.scoring if self.scoring and not self.scoring.is_finished else None
        num_wanted = self._num_tokens if scoring is None else scoring.num_scored
        if num_wanted - self.num_read <= max_tokens:
            return scoring.next_chunk(self.request_id, max_nodes) if scoring else None
        chunk = self._read_only[: self.num_read + max_tokens]
        return VerifyRequest(
            self.request_id,
            chunk,
            len(chunk),
            EMPTY_DRAFT.tree,
            SamplingParams(),
            self.feed.wanted,
        )

    def finish_chunk(self, chunk: VerifyRequest, verdict: Verdict) -> None:
        """Take note that a chunk is read. Raises VerifierError for a wrong verdict."""
        self.num_read = min(len(chunk.prefix) + chunk.tree.num_nodes, self._num_tokens - 1)
        if chunk.is_of_prompt and self.scoring is not None:
            self.scoring.take(chunk, verdict)

    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Return those of the prompt with the first step, else none."""
        return self.scoring.logprobs if self.scoring and self.num_steps == 1 else ()

    def verify_request(self) -> VerifyRequest:
        return VerifyRequest(
            self.request_id,
            self.prefix,
            self.num_prompt_tokens,
            self.draft.tree,
            self.sampling,
            self.feed.wanted,
        )

    def verified_draft(self, verdict: Verdict) -> VerifiedDraft | None:
        """Return the draft that a verdict was about, if there was one and it is to be reported."""
        draft = self.draft
        if not self._speculation.report_drafts or draft is EMPTY_DRAFT:
            return None
        return VerifiedDraft(draft.tree, draft.confidences, verdict.accepted_nodes)

    def adapt(self, verdict: Verdict) -> None:
        """Let the controllers learn from the outcome of a drafted step."""
        if self.draft is EMPTY_DRAFT:
            return
        self.draft_length.observe(self.draft, verdict)
        if self._weight is not None:
            self._weight.observe(self.draft, verdict)
