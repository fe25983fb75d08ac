"""Sequence: the one mutable object of a request, touched by the coordinator alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

import numpy as np

from diffuspec.algorithm.draft_tree import depths, prune_draft, validate
from diffuspec.control.draft_length import DraftLength
from diffuspec.control.drafter_weight import AdaptiveWeight
from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams, SpeculationParams
from diffuspec.core.types import (
    EMPTY_DRAFT,
    MAX_ALTERNATIVES,
    Draft,
    DraftRequest,
    FinishReason,
    TokenIds,
    Verdict,
    VerifyRequest,
)
from diffuspec.text.detokenizer import Detokenizer


class Sequence:
    """A prompt, what was committed after it, and how the next step will be drafted."""

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        draft_length: DraftLength,
        eos_token_ids: tuple[int, ...],
        text: Detokenizer | None = None,
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling = sampling
        self.draft_length = draft_length
        self.finish_reason: FinishReason | None = None
        self.draft: Draft = EMPTY_DRAFT
        self.num_draft_tokens = 0  # asked of the drafter for the coming step
        self.fallback: str | None = None
        self.num_read = 0  # tokens of the prefix that the target has in its cache
        self._speculation = speculation
        self._weight = AdaptiveWeight() if speculation.drafter_weight == "adaptive" else None
        self._text = text
        self._stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._stop_ids |= frozenset(eos_token_ids)
        self._tokens = np.zeros(self.num_prompt_tokens + sampling.max_tokens, np.int32)
        self._tokens[: self.num_prompt_tokens] = prompt_token_ids
        self._tokens.flags.writeable = False  # views of it go to the workers
        self._num_tokens = self.num_prompt_tokens

    @property
    def prefix(self) -> TokenIds:
        return self._tokens[: self._num_tokens]

    @property
    def num_output_tokens(self) -> int:
        return self._num_tokens - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_outcomes(self) -> int | Literal["auto"]:
        """How many outcomes of a verification may be drafted ahead."""
        return self._speculation.num_outcomes

    def plan_draft(self) -> int:
        """Decide the next draft's length: no longer than what may still be committed."""
        room = self._room()
        self.num_draft_tokens = self.draft_length.num_draft_tokens(room) if room > 0 else 0
        return self.num_draft_tokens

    def plan_ahead(self) -> int:
        """Return the length of drafts ahead of the verdict to come; 0: none are wanted."""
        room = self._room(num_more=1)
        return self.draft_length.length_ahead(room) if room > 0 else 0

    def length_after(self, token_ids: Collection[int], planned: int) -> int:
        """Return how long a draft of a planned length may be once these tokens are committed.

        0: the request will have ended, or has no room for a draft.
        """
        if not self._stop_ids.isdisjoint(token_ids):
            return 0
        return max(min(planned, self._room(num_more=len(token_ids))), 0)

    def _room(self, num_more: int = 0) -> int:
        """Draft tokens that may be committed, besides the target's own, after so many more."""
        return self.sampling.max_tokens - self.num_output_tokens - num_more - 1

    def draft_request(self) -> DraftRequest:
        """Return what to ask the drafter for the planned draft."""
        return self._draft_request(self.prefix, self.num_draft_tokens)

    def draft_request_after(self, token_ids: Collection[int], length: int) -> DraftRequest:
        """Return what to ask for the case that these tokens are committed."""
        prefix = np.concatenate([self.prefix, np.array([*token_ids], np.int32)])
        return self._draft_request(prefix, length)

    def _draft_request(self, prefix: TokenIds, length: int) -> DraftRequest:
        """One position more is drafted than verified: what follows a draft accepted whole."""
        speculation = self._speculation
        looks_ahead = speculation.num_outcomes != 0
        weight = self._weight.value if self._weight is not None else speculation.drafter_weight
        assert not isinstance(weight, str)
        return DraftRequest(
            request_id=self.request_id,
            prefix=prefix,
            num_draft_tokens=min(length + looks_ahead, MAX_DRAFT_TOKENS),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=weight,
            sampling=self.sampling,
            num_alternatives=MAX_ALTERNATIVES if looks_ahead else 0,
        )

    def take_draft(self, draft: Draft, target: TargetInfo) -> None:
        """Keep what is worth verifying of a draft. Raises InvalidRequestError for a wrong one."""
        tree = draft.tree
        validate(tree)
        limit = min(self._speculation.max_nodes, target.max_tree_nodes)
        if tree.num_nodes > limit or len(draft.confidences) != tree.num_nodes:
            raise InvalidRequestError(
                f"a draft must have at most {limit} nodes and as many confidences, got "
                f"{tree.num_nodes} and {len(draft.confidences)}"
            )
        highest = max(tree.token_ids, default=0)
        if highest >= target.vocab_size:
            raise InvalidRequestError(
                f"draft token ids must be below {target.vocab_size}, got {highest}"
            )
        _check_alternatives(draft, target.vocab_size)
        num_draft_tokens = self.num_draft_tokens
        if tree.num_nodes > num_draft_tokens:
            kept = [node for node, depth in enumerate(depths(tree)) if depth <= num_draft_tokens]
            if len(kept) < tree.num_nodes:  # deeper than asked: those could not be committed
                draft = prune_draft(draft, kept)
        if draft.num_tokens_before_eos > num_draft_tokens:
            draft = replace(draft, num_tokens_before_eos=num_draft_tokens)
        self.draft = self.draft_length.trim(draft)

    def take_draft_ahead(self, draft: Draft, length: int, target: TargetInfo) -> None:
        """Keep a draft of that length which was made ahead; see take_draft."""
        self.num_draft_tokens = length
        self.draft_length.take_ahead(length)
        self.take_draft(draft, target)

    @property
    def num_unread(self) -> int:
        """Tokens of the prefix that the target reads in the coming step; 1 while it decodes."""
        return self._num_tokens - self.num_read

    def next_chunk(self, max_tokens: int) -> VerifyRequest | None:
        """A piece of the prefix to be read by the target ahead of the step, if much is unread."""
        if self.num_unread <= max_tokens:
            return None
        chunk = self._tokens[: self.num_read + max_tokens]
        return VerifyRequest(self.request_id, chunk, len(chunk), EMPTY_DRAFT.tree, SamplingParams())

    def chunk_done(self, chunk: VerifyRequest) -> None:
        """The target has read this piece of the prefix."""
        self.num_read = len(chunk.prefix)

    def verify_request(self) -> VerifyRequest:
        return VerifyRequest(
            self.request_id, self.prefix, self.num_prompt_tokens, self.draft.tree, self.sampling
        )

    def adapt(self, verdict: Verdict) -> None:
        """Let the controllers learn from a drafted step's outcome."""
        if self.draft is EMPTY_DRAFT:
            return
        self.draft_length.observe(self.draft, verdict)
        if self._weight is not None:
            self._weight.observe(self.draft, verdict)

    def commit(self, verdict: Verdict) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Append the verdict's tokens up to the first that ends the request.

        Returns the tokens kept and the text that each released; sets finish_reason.
        """
        pieces: list[str] = []
        start = self._num_tokens
        for token_id in verdict.token_ids:
            self._num_tokens += 1
            pieces.append(self._take(token_id))
            if self.is_finished:
                pieces[-1] += self._text.finish() if self._text is not None else ""
                break
        kept = verdict.token_ids[: len(pieces)]
        self._tokens.flags.writeable = True
        self._tokens[start : self._num_tokens] = kept
        self._tokens.flags.writeable = False
        self.num_read = self._num_tokens - 1  # all but the target's own last token
        return kept, tuple(pieces)

    def _take(self, token_id: int) -> str:
        """Release a token's text and see whether it ends the request."""
        if token_id in self._stop_ids:
            self.finish_reason = FinishReason.STOP
            return ""
        piece = self._text.push(token_id) if self._text is not None else ""
        if self._text is not None and self._text.is_stopped:
            self.finish_reason = FinishReason.STOP
        elif self.num_output_tokens >= self.sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH
        return piece


def _check_alternatives(draft: Draft, vocab_size: int) -> None:
    count, expected = len(draft.alternatives), 1 + draft.tree.num_nodes
    if count and count != expected:
        raise InvalidRequestError(
            f"a draft must have alternatives for none or for {expected} places, got {count}"
        )
    wrong = [
        token_id
        for alternatives in draft.alternatives
        for token_id, _ in alternatives
        if not 0 <= token_id < vocab_size
    ]
    if wrong:
        raise InvalidRequestError(
            f"alternative token ids must be from 0 to {vocab_size - 1}, got {wrong[0]}"
        )


def check_request(
    prompt: TokenIds, sampling: SamplingParams, speculation: SpeculationParams, info: TargetInfo
) -> None:
    """Raise InvalidRequestError, naming the value, for what this target cannot do."""
    if not len(prompt):
        raise InvalidRequestError("the prompt is empty; it needs at least one token")
    wrong = prompt[(prompt < 0) | (prompt >= info.vocab_size)]
    if len(wrong):
        raise InvalidRequestError(
            f"prompt token ids must be from 0 to {info.vocab_size - 1}, got {wrong[0]}"
        )
    if sampling.lacks_seed:
        raise InvalidRequestError("seed must be given to sample: see SamplingParams.with_seed")
    if len(prompt) + sampling.max_tokens > info.max_model_len:
        raise ContextLengthError(
            f"{len(prompt)} prompt tokens and max_tokens {sampling.max_tokens} do not fit the "
            f"target's context of {info.max_model_len} tokens"
        )
    if speculation.max_nodes > info.max_tree_nodes:
        raise InvalidRequestError(
            f"max_nodes must be at most {info.max_tree_nodes}, got {speculation.max_nodes}"
        )
    too_high = [i for i in sampling.stop_token_ids if not 0 <= i < info.vocab_size]
    if too_high:
        raise InvalidRequestError(
            f"stop_token_ids must be from 0 to {info.vocab_size - 1}, got {too_high[0]}"
        )
