"""The drafter: a diffusion LM that predicts a block of masked tokens in one forward."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from diffuspec.algorithm.lattice import EMPTY_LATTICE, Pruning, build_lattices
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import DrafterError, InvalidRequestError, VocabularyError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.pages import num_pages_of
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import DraftRequest, Lattice, TokenIds, num_shared_tokens
from diffuspec.models.attention.segment import Segment
from diffuspec.models.diffusion_layout import feed, lay_out
from diffuspec.models.draft_context import cut_to_limit, draft_context, max_context_tokens
from diffuspec.models.draft_requests import (
    check_draft_request,
    check_vocabulary,
    draft_rounds,
    is_noiseless,
    with_noise,
)
from diffuspec.models.kernels.operations import most_probable
from diffuspec.models.layers.draft_head import LogitColumns
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.families import DiffusionSettings, find_warnings
from diffuspec.models.loading.load import load_model
from diffuspec.models.masked_draft import MaskedDraft
from diffuspec.models.pages.table import PageTable
from diffuspec.models.renewal import IdleRenewal, RowAges
from diffuspec.models.runner import ModelRunner
from diffuspec.models.worker import Worker

logger = logging.getLogger(__name__)

NUM_SCRATCH_ROWS = 512  # rows of a request for masks and hypothetical tokens
MAX_PREFILL_ROWS = 512  # rows of one request in one forward, if prefixes are causal


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    table: PageTable
    segments: list[Segment]
    committed: TokenIds  # tokens of the leading new rows, which stay in the cache


class DiffusionDrafter:
    """A LatticeModel over a diffusion LM with any kind of attention (see `DiffusionSettings`).

    With the prefix cache, the states of a prefix are exact where no later token changes them; the
    others are recomputed. With full attention they come from earlier steps, and the last ones are
    recomputed every refresh_every tokens; see `renewal`. Requests of one batch with the same id
    (hypothetical prefixes) share pages and a forward. Ids unknown to the target, and the mask, are
    never drafted. Forwards run in a worker thread, or inline if the target takes one sequence at a
    time and nothing is renewed. If it takes more, a drafter with a cache of exact prefixes prefills
    a long prefix over several calls, and until then returns empty lattices for it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        settings: DiffusionSettings,
        config: DiffuSpecConfig,
        target: TargetInfo,
        max_positions: int,
    ) -> None:
        check_vocabulary(target.vocab_size, runner.vocab_size)
        _check_mask(settings.mask_token_id, runner.vocab_size)
        self.runner = runner
        self._target = target
        self._masks = np.full(MAX_DRAFT_TOKENS, settings.mask_token_id, np.int32)
        self._settings = settings
        self._max_positions = max_positions
        self._uses_cache = config.prefix_cache
        self._context_tokens = config.context_tokens
        self._keeps_exact_rows = settings.has_exact_prefix and config.prefix_cache
        self._prefills_in_pieces = self._keeps_exact_rows and target.max_sequences > 1
        self._num_steps = config.num_refinement_steps
        self._banned = self._banned_columns()
        self._pruning = Pruning(config.candidate_mass, config.max_candidates, target.eos_token_ids)
        self._ages = RowAges(config.refresh_every, config.refresh_tokens)
        self.renewal = IdleRenewal(runner, self._ages)
        self._renews = config.renew_when_idle and not settings.has_exact_prefix
        self._worker = Worker("drafter", target.max_sequences == 1 and not self._renews)

    @classmethod
    def load(cls, config: DiffuSpecConfig, target: TargetInfo) -> Self:
        """Load the drafter. Raises ModelLoadError, and VocabularyError if it does not match."""
        checkpoint = inspect_checkpoint(config.path)
        settings = checkpoint.diffusion_with(config.block_size)
        checkpoint.check_room_for_drafts(settings.block_size)
        for warning in find_warnings(checkpoint.family, settings):
            logger.warning("%s: %s", config.path, warning)
        context_tokens = checkpoint.context_tokens_with(config.context_tokens)
        longest = max_context_tokens(target.max_model_len, context_tokens)
        longest += MAX_DRAFT_TOKENS + settings.block_size - 1
        max_positions = min(longest, checkpoint.max_positions)
        loaded = load_model(
            config.path,
            device=config.device,
            dtype=config.dtype,
            max_sequences=target.max_sequences,
            max_len=max_positions,
            num_scratch_rows=NUM_SCRATCH_ROWS,
            allow_int8=True,
            shares_prefixes=settings.has_exact_pages,
        )
        config = config.model_copy(update={"context_tokens": context_tokens})
        return cls(loaded.runner, settings, config, target, max_positions)

    def with_config(self, config: DiffuSpecConfig) -> Self:
        """Return another drafter over the same model and cache, with other settings.

        Only one of the two may work at a time.
        """
        if config.context_tokens is None:
            config = config.model_copy(update={"context_tokens": self._context_tokens})
        return type(self)(self.runner, self._settings, config, self._target, self._max_positions)

    async def lattices(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        """Draft a batch; see `LatticeModel.lattices`."""
        for request in requests:
            self._check(request)
        if not requests:
            return []
        return await self._worker.run(self._draft, list(requests))

    async def release(self, request_id: str) -> None:
        await self._worker.run(self._release, request_id)

    def close(self) -> None:
        """Stop the worker thread after its current call."""
        self._worker.close()

    def _check(self, request: DraftRequest) -> None:
        k = request.num_draft_tokens
        if not 1 <= k <= MAX_DRAFT_TOKENS:
            raise InvalidRequestError(
                f"num_draft_tokens must be from 1 to {MAX_DRAFT_TOKENS}, got {k}"
            )
        check_draft_request(request, self._target.vocab_size)

    def _release(self, request_id: str) -> None:
        self.runner.cache.release(request_id)
        self._ages.release(request_id)

    @torch.inference_mode()
    def _draft(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        try:
            drafts = [self._begin(request) for request in requests]
            ready = self._prefill(drafts) if self._prefills_in_pieces else drafts
            found = dict(zip(ready, self._lattices(ready), strict=True)) if ready else {}
            if self._renews:
                self._worker.when_idle(self._renew)
            return [found.get(draft, EMPTY_LATTICE) for draft in drafts]
        except Exception as error:  # torch may raise anything
            for request in requests:  # their cached rows may contain NaNs
                self.runner.cache.clear(request.request_id)
            raise DrafterError(f"the drafter's forward pass failed: {error}") from error

    def _renew(self) -> bool:
        return self.renewal.renew(lambda: self._worker.is_awaited)

    def _lattices(self, drafts: Sequence[MaskedDraft]) -> list[Lattice]:
        # Noise and refinement need the logits of all ids; otherwise the computed columns suffice.
        takes_columns = self._num_steps == 1 and all(is_noiseless(one.request) for one in drafts)
        columns = self.runner.columns if takes_columns else None
        is_aligned = self._settings.attention == "block_aligned"
        block_size = self._settings.block_size if is_aligned else None
        for step in range(self._num_steps):
            if step:
                for draft in drafts:
                    count = math.ceil(len(draft.block) / self._num_steps)
                    draft.fix_most_confident(count, block_size)
            self._fill(drafts, columns)
        lengths = [len(draft.block) for draft in drafts]
        keeps_runners_up = [draft.request.num_alternatives > 0 for draft in drafts]
        ids = columns.token_ids if columns else None
        found = most_probable(_joined(drafts), self._pruning.max_candidates, ids)
        lattices = build_lattices(*found, lengths, self._pruning, keeps_runners_up)
        return [
            replace(lattice, num_refreshed=draft.num_refreshed) if draft.num_refreshed else lattice
            for draft, lattice in zip(drafts, lattices, strict=True)
        ]

    def _prefill(self, drafts: Sequence[MaskedDraft]) -> list[MaskedDraft]:
        """Return the drafts with at most MAX_PREFILL_ROWS uncached tokens.

        For the first of the other requests, a piece of the prefix is prefilled.
        """
        cache, behind = self.runner.cache, set[str]()
        long = {d.request.request_id: d for d in drafts if len(d.prefix) > MAX_PREFILL_ROWS}
        for request_id, draft in long.items():
            prefix, salt = draft.prefix, draft.request.sampling.cache_salt
            cache.begin_step()
            table = cache.acquire(request_id, prefix, salt=salt)
            start = self._settings.num_settled(table.length)
            if len(prefix) - start > MAX_PREFILL_ROWS:
                if not behind:
                    feed(self.runner, table, prefix, start, MAX_PREFILL_ROWS, self._settings)
                behind.add(request_id)
        return [draft for draft in drafts if draft.request.request_id not in behind]

    def _begin(self, request: DraftRequest) -> MaskedDraft:
        k = request.num_draft_tokens
        prefix = draft_context(request.prefix, request.num_prompt_tokens, self._context_tokens)
        prefix = cut_to_limit(prefix, self._max_positions - k - self._settings.block_size + 1)
        return MaskedDraft(request, prefix, block=self._masks[:k].copy())

    def _fill(self, drafts: Sequence[MaskedDraft], columns: LogitColumns | None) -> None:
        """Run the model over every draft's prefix and block, and update its logits.

        If columns are given, only their logits are computed.
        """
        groups: dict[str, list[MaskedDraft]] = {}
        for draft in drafts:
            groups.setdefault(draft.request.request_id, []).append(draft)
        firsts = [group[0].request for group in groups.values()]
        sizes = [_num_pages(group) for group in groups.values()]
        for places in draft_rounds(firsts, self.runner.cache.num_pages, sizes):
            self._fill_groups([groups[firsts[place].request_id] for place in places], columns)

    def _fill_groups(
        self, groups: Sequence[Sequence[MaskedDraft]], columns: LogitColumns | None
    ) -> None:
        self.runner.cache.begin_step()
        plans = [self._plan(group) for group in groups]
        segments = [segment for plan in plans for segment in plan.segments]
        logits = self.runner.forward_columns(segments)
        logits[:, self._banned] = -torch.inf
        if self.runner.columns and not columns:
            logits = self.runner.columns.spread(logits)
        first = 0
        for draft in (draft for group in groups for draft in group):
            last = first + len(draft.block)
            ends = self._pruning.eos_token_ids
            draft.update(with_noise(logits[first:last], draft.request, ends))
            first = last
        for plan in plans:
            self.runner.cache.commit(plan.table, plan.committed, len(plan.committed))

    def _banned_columns(self) -> torch.Tensor:
        """Return the columns of the logits for the mask and for ids unknown to the target."""
        columns = self.runner.columns
        ids = columns.token_ids if columns else torch.arange(self.runner.vocab_size)
        is_banned = (ids >= self._target.vocab_size) | (ids == self._settings.mask_token_id)
        return is_banned.nonzero().flatten().to(self.runner.device)

    def _plan(self, group: Sequence[MaskedDraft]) -> _Plan:
        """Lay out the drafts of one request id, and choose the new prefix rows to keep."""
        request, prefixes = group[0].request, [draft.prefix for draft in group]
        request_id = request.request_id
        shared = prefixes[0]
        for prefix in prefixes[1:]:
            shared = shared[: num_shared_tokens(shared, prefix)]
        shared = shared[: self._settings.num_settled(len(shared))]
        table, start = self._acquire(request, prefixes, len(shared))
        committed = shared
        if not self._settings.has_exact_prefix:
            # Prefix rows see the draft after them, so rows that several drafts share are not kept.
            committed = shared if len(group) == 1 else shared[:start]
            if len(group) == 1:
                first = self._ages.first_stale(request_id, start, len(shared))
                group[0].num_refreshed += start - first
                start = first
            self._ages.set(request_id, start, len(committed), len(committed))
        if not self._uses_cache:
            start, committed = 0, shared[:0]
        self.runner.cache.truncate(table, start)
        while self._keeps_exact_rows and len(shared) - start > MAX_PREFILL_ROWS:
            start = feed(self.runner, table, shared, start, MAX_PREFILL_ROWS, self._settings)
        blocks = [draft.block for draft in group]
        settings, max_rows = self._settings, NUM_SCRATCH_ROWS
        segments = lay_out(prefixes, blocks, table, start, len(shared), settings, max_rows)
        return _Plan(table, list(segments), committed[start:])

    def _acquire(
        self, request: DraftRequest, prefixes: Sequence[TokenIds], num_shared: int
    ) -> tuple[PageTable, int]:
        """Return the table, and the number of shared tokens that need not be computed again.

        The last token of a prefix is computed again if its row predicts the first drafted token.
        """
        settings, salt = self._settings, request.sampling.cache_salt
        table = self.runner.cache.acquire(request.request_id, prefixes[0], num_shared, salt)
        start = settings.num_settled(table.length)
        if settings.is_shifted or not settings.has_exact_prefix:
            start = min(start, *(len(prefix) - 1 for prefix in prefixes))
        return table, start


def _num_pages(group: Sequence[MaskedDraft]) -> int:
    """Return the largest number of pages that the drafts of one request id take."""
    longest = max(len(draft.prefix) + len(draft.block) for draft in group)
    return num_pages_of(longest + NUM_SCRATCH_ROWS)


def _joined(drafts: Sequence[MaskedDraft]) -> torch.Tensor:
    """Return the logits of all drafts, [sum of k, V]."""
    logits = [draft.logits for draft in drafts if draft.logits is not None]
    return logits[0] if len(logits) == 1 else torch.cat(logits)


def _check_mask(mask_token_id: int, vocab_size: int) -> None:
    """Raise VocabularyError if the drafter has no id for its mask."""
    if not 0 <= mask_token_id < vocab_size:
        raise VocabularyError(f"mask_token_id must be below {vocab_size}, got {mask_token_id}")
