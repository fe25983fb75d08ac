"""A drafter that reads the target's hidden states, which come with its requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from diffuspec.algorithm.lattice import EMPTY_LATTICE
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import PathScorer, TargetInfo
from diffuspec.core.types import Draft, DraftRequest, Lattice, StatesWanted
from diffuspec.drafters.head_drafter import FeatureLattices
from diffuspec.models.draft_requests import check_draft_request
from diffuspec.models.heads.features import FeatureStore
from diffuspec.models.hidden_states import states_of
from diffuspec.models.worker import Worker


class FedDrafter:
    """Makes lattices from the hidden states sent to it, and has them searched.

    It keeps the states of the latest prefixes. Each draft says which states are lacking, and is
    empty if more are lacking than the model's `max_unknown` at the end of the prefix.
    """

    def __init__(
        self,
        model: FeatureLattices,
        hidden_layers: tuple[int, ...],
        path_scorer: PathScorer,
        target: TargetInfo,
    ) -> None:
        self._model = model
        self._layers = hidden_layers
        self._path_scorer = path_scorer
        self._num_ids = target.vocab_size
        self._max_unknown = model.max_unknown
        self._features = FeatureStore(2 * target.max_sequences)
        self._worker = Worker("drafter", is_inline=target.max_sequences == 1)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft a batch; see `Drafter.draft`."""
        for request in requests:
            check_draft_request(request, self._num_ids)
        if not requests:
            return []
        started = time.monotonic()
        lattices, wishes = await self._worker.run(self._read, list(requests))
        seconds = time.monotonic() - started
        drafts = await self._path_scorer.search(requests, lattices)
        return [
            replace(draft, draft_seconds=seconds, states_wanted=wanted)
            for draft, wanted in zip(drafts, wishes, strict=True)
        ]

    async def release(self, request_id: str) -> None:
        """Keep the states, a bounded number: they serve requests with the same beginning."""

    def close(self) -> None:
        self._worker.close()

    def _read(self, requests: Sequence[DraftRequest]) -> tuple[list[Lattice], list[StatesWanted]]:
        try:
            for request in requests:
                self._keep(request)
            most = self._max_unknown
            found = [self._features.find(request.prefix, most) for request in requests]
            known = [place for place, one in enumerate(found) if one is not None and not one.first]
            features = [one for one in found if one is not None and not one.first]
            lattices = [EMPTY_LATTICE] * len(requests)
            if known:
                made = self._model.lattices([requests[place] for place in known], features)
                for place, lattice in zip(known, made, strict=True):
                    lattices[place] = lattice
        except Exception as error:  # torch raises anything
            raise DrafterError(f"the drafter failed: {error}") from error
        num_known = [self._features.num_known(request.prefix[:-1]) for request in requests]
        return lattices, [StatesWanted(self._layers, number) for number in num_known]

    def _keep(self, request: DraftRequest) -> None:
        """Keep the states that came with a request, if they go on with what is known."""
        rows = request.states
        if rows is None or rows.end > len(request.prefix):
            return
        token_ids = request.prefix[: rows.end]
        if rows.first <= self._features.num_known(token_ids):
            self._features.extend(token_ids, rows.first, states_of(rows))
