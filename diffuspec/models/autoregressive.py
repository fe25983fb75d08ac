"""A causal LM as the drafter (SPS): it drafts a chain, with one forward per token.

Leviathan et al., Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192). It
shapes its logits and adds the sampling noise as the target does, so where the two models agree, so
do their tokens: drafts of a copy of the target are always accepted, even in sampling. The model may
also be a block-causal diffusion LM, which without masks is a causal LM.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch

from diffuspec.algorithm.draft_tree import chain
from diffuspec.algorithm.sampling import perturb_logits
from diffuspec.algorithm.shaping import History
from diffuspec.core.drafter_config import AutoregressiveConfig
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.pages import num_pages_of
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import Draft, DraftRequest, TokenIds
from diffuspec.models.attention.segment import Segment
from diffuspec.models.draft_context import draft_context, max_context_tokens
from diffuspec.models.draft_requests import check_draft_request, check_vocabulary, draft_rounds
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.load import load_model
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner
from diffuspec.models.worker import Worker

MAX_PREFILL_ROWS = 512  # rows of one request in one forward


@dataclass(slots=True, eq=False)
class _Chain:
    """One request's draft so far."""

    request: DraftRequest
    context: TokenIds  # the part of its prefix that the drafter reads
    length: int  # number of tokens to draft
    table: PageTable | None
    token_ids: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    is_ended: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.request.prefix) + len(self.token_ids)


class AutoregressiveDrafter:
    """A Drafter over a causal LM with the target's vocabulary and its own cache.

    Requests form one batch; those with the same id (hypothetical prefixes) are processed one after
    the other. Nothing is drafted beyond the model's context. Forwards run in a worker thread, or
    inline if the target takes one sequence at a time.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: AutoregressiveConfig,
        target: TargetInfo,
        max_positions: int,
    ) -> None:
        check_vocabulary(target.vocab_size, runner.vocab_size)
        self.runner = runner
        self._config = config
        self._target = target
        self._max_positions = max_positions
        self._min_logprob = np.log(config.min_confidence) if config.min_confidence else -np.inf
        self._worker = Worker("drafter", is_inline=target.max_sequences == 1)

    @classmethod
    def load(cls, config: AutoregressiveConfig, target: TargetInfo) -> Self:
        """Load the drafter. Raises ModelLoadError, and VocabularyError if it does not match."""
        checkpoint = inspect_checkpoint(config.path)
        checkpoint.check_autoregressive("a drafter of kind sps", may_be_block_causal=True)
        context_tokens = checkpoint.context_tokens_with(config.context_tokens)
        longest = max_context_tokens(target.max_model_len, context_tokens)
        max_len = min(longest + MAX_DRAFT_TOKENS, checkpoint.max_positions)
        loaded = load_model(
            config.path,
            device=config.device,
            dtype=config.dtype,
            max_sequences=target.max_sequences,
            max_len=max_len,
            allow_int8=True,
        )
        config = config.model_copy(update={"context_tokens": context_tokens})
        return cls(loaded.runner, config, target, max_len)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft a batch; see `Drafter.draft`."""
        for request in requests:
            check_draft_request(request, self._target.vocab_size)
        return await self._worker.run(self._draft, list(requests)) if requests else []

    async def release(self, request_id: str) -> None:
        await self._worker.run(self.runner.cache.release, request_id)

    def close(self) -> None:
        """Stop the worker thread after its current call."""
        self._worker.close()

    @torch.inference_mode()
    def _draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        started = time.perf_counter()
        drafts: list[Draft | None] = [None] * len(requests)
        try:
            sizes = [self._num_pages(request) for request in requests]
            for places in draft_rounds(requests, self.runner.cache.num_pages, sizes):
                chains = self._draft_chains([requests[place] for place in places])
                for place, one in zip(places, chains, strict=True):
                    drafts[place] = self._make_draft(one)
        except Exception as error:  # torch may raise anything
            for request in requests:  # their cached rows may contain NaNs
                self.runner.cache.clear(request.request_id)
            raise DrafterError(f"the drafter's forward pass failed: {error}") from error
        seconds = time.perf_counter() - started
        return [replace(draft, draft_seconds=seconds) for draft in drafts if draft is not None]

    def _draft_chains(self, requests: Sequence[DraftRequest]) -> list[_Chain]:
        """Draft for requests with different ids."""
        cache = self.runner.cache
        cache.begin_step()
        chains = [self._begin(request) for request in requests]
        while drafting := [one for one in chains if not one.is_ended]:
            segments = [self._segment(one) for one in drafting]
            logits = self.runner.forward(segments)
            logits[:, self._target.vocab_size :].fill_(-torch.inf)
            for segment in segments:
                token_ids = np.asarray(segment.token_ids, np.int32)
                cache.commit(segment.table, token_ids, segment.num_rows)
            self._extend(drafting, logits)
        return chains

    def _context(self, request: DraftRequest) -> TokenIds:
        size = self._config.context_tokens
        return draft_context(request.prefix, request.num_prompt_tokens, size)

    def _num_pages(self, request: DraftRequest) -> int:
        """Return the number of pages that a draft takes."""
        end = len(self._context(request)) + request.num_draft_tokens
        return num_pages_of(min(end, self._max_positions))

    def _begin(self, request: DraftRequest) -> _Chain:
        context = self._context(request)
        wanted = request.num_draft_tokens, request.max_nodes, self._config.num_draft_tokens
        length = min(*wanted, self._max_positions - len(context))
        if length < 1:
            return _Chain(request, context, 0, None, is_ended=True)
        salt = request.sampling.cache_salt
        table = self.runner.cache.acquire(request.request_id, context, salt=salt)
        self.runner.extend(table, context, table.length, MAX_PREFILL_ROWS)
        return _Chain(request, context, length, table)

    def _segment(self, one: _Chain) -> Segment:
        """Return a segment with the uncached tokens, and the logits of the last one."""
        assert one.table is not None, "an ended chain has no more rows"
        start = one.table.length
        known = one.context if not one.token_ids else np.array(one.token_ids[-1:], np.int32)
        token_ids = known[start:] if not one.token_ids else known
        positions = np.arange(start, start + len(token_ids))
        last_row = [len(token_ids) - 1]
        return Segment(one.table, start, token_ids, positions, "causal", last_row)

    def _extend(self, chains: Sequence[_Chain], logits: torch.Tensor) -> None:
        """Add to every chain the token that the target would draw from its row of logits."""
        rows = torch.cat(
            [self._perturb(one, logits[row : row + 1]) for row, one in enumerate(chains)]
        )
        logprobs, token_ids = rows.float().log_softmax(dim=-1).max(dim=-1)
        ends = self._target.eos_token_ids
        for one, token_id, logprob in zip(
            chains, token_ids.tolist(), logprobs.tolist(), strict=True
        ):
            one.token_ids.append(token_id)
            one.confidences.append(logprob)
            is_last = token_id in ends and not one.request.sampling.ignore_eos
            is_unsure = logprob < self._min_logprob
            one.is_ended = is_last or is_unsure or len(one.token_ids) == one.length

    def _perturb(self, one: _Chain, logits: torch.Tensor) -> torch.Tensor:
        request, ends = one.request, self._target.eos_token_ids
        history = History(request.prefix, request.num_prompt_tokens, [one.token_ids])
        return perturb_logits(logits, request.sampling, [one.num_tokens], history, ends)

    def _make_draft(self, one: _Chain) -> Draft:
        ignores_eos = one.request.sampling.ignore_eos
        is_end = bool(one.token_ids) and one.token_ids[-1] in self._target.eos_token_ids
        num_before_eos = len(one.token_ids) - (is_end and not ignores_eos)
        return Draft(chain(one.token_ids), tuple(one.confidences), num_before_eos)
