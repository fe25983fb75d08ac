"""Drafters that read the target's hidden states.

They observe the target and run beside it, or receive the states with requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from diffuspec.algorithm.lattice import EMPTY_LATTICE
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import LAST_LAYER, Observation, PathScorer, TargetInfo
from diffuspec.core.states import StatesWanted
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest, Lattice
from diffuspec.drafters.kind import Target
from diffuspec.models.draft_requests import check_draft_request
from diffuspec.models.heads.features import Features, FeatureStore
from diffuspec.models.heads.target_layers import TargetLayers, target_layers
from diffuspec.models.hidden_states import states_of
from diffuspec.models.worker import Worker

if TYPE_CHECKING:
    from diffuspec.models.heads.dflash_runner import DFlashRunner

T = TypeVar("T")
Work: TypeAlias = Callable[[Sequence[DraftRequest], Sequence[Features]], list[T]]


class DraftHeads(Protocol):
    """Makes drafts from hidden states."""

    def draft(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> list[Draft]:
        """Return one draft per request, in order. Called from one thread at a time."""
        ...


def layers_beside(target: Target) -> TargetLayers:
    """Return the layers of the target in this process. Raises ModelLoadError."""
    return target_layers(target.observed, target.path)


class StateReader:
    """Observes the verifier in this process, and runs drafters on the recorded hidden states.

    It observes every verification, since a prefix may be read before its draft is requested. A
    prefix with unknown states has no draft: one that the target read before this reader existed or,
    if all states are needed, a hypothetical one.
    """

    num_top = 0
    is_active = True

    def __init__(
        self,
        target: Target,
        hidden_layers: tuple[int, ...],
        *,
        max_unknown: int = 0,
    ) -> None:
        """max_unknown: states that may be missing before a prefix's last token."""
        self.hidden_layers = hidden_layers
        self._max_unknown = max_unknown
        self._features = FeatureStore.beside(target.info)
        self._num_ids = target.info.vocab_size
        self._verifier = target.observed
        self._worker = Worker("drafter", is_inline=target.info.max_sequences == 1)
        self._verifier.add_observer(self)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep the hidden states of committed tokens."""
        for one in observations:
            if one.hidden_states:
                self._features.add(one)

    async def run(self, work: Work[T], requests: Sequence[DraftRequest], nothing: T) -> list[T]:
        """Run `work` in a thread for the requests whose states are known.

        The result for the others is `nothing`. Raises InvalidRequestError before any work,
        DrafterError after.
        """
        for request in requests:
            check_draft_request(request, self._num_ids)
        if not requests:
            return []
        return await self._worker.run(self._run, work, list(requests), nothing)

    def close(self) -> None:
        self._verifier.remove_observer(self)
        self._worker.close()

    def _run(self, work: Work[T], requests: Sequence[DraftRequest], nothing: T) -> list[T]:
        found = [_find(self._features, request, self._max_unknown) for request in requests]
        try:
            return _where_known(work, requests, found, nothing)
        except Exception as error:  # torch may raise anything
            raise DrafterError(f"the draft heads failed: {error}") from error


def _find(store: FeatureStore, request: DraftRequest, max_unknown: int) -> Features | None:
    return store.find(request.prefix, max_unknown, request.sampling.cache_salt)


def _where_known(
    work: Work[T], requests: Sequence[DraftRequest], found: Sequence[Features | None], nothing: T
) -> list[T]:
    """Run `work` for the requests whose states were found; the result for others is `nothing`."""
    known = {place: one for place, one in enumerate(found) if one is not None}
    results = [nothing] * len(requests)
    if known:
        made = work([requests[place] for place in known], list(known.values()))
        for place, result in zip(known, made, strict=True):
            results[place] = result
    return results


class HeadDrafter:
    """A Drafter beside the target, with heads that read its hidden states."""

    def __init__(
        self,
        target: Target,
        heads: DraftHeads,
        hidden_layers: tuple[int, ...] = (LAST_LAYER,),
    ) -> None:
        self._heads = heads
        self._reader = StateReader(target, hidden_layers)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft a batch; see `Drafter.draft`."""
        started = time.perf_counter()
        drafts = await self._reader.run(self._heads.draft, requests, EMPTY_DRAFT)
        seconds = time.perf_counter() - started
        return [replace(draft, draft_seconds=seconds) for draft in drafts]

    async def release(self, request_id: str) -> None:
        """Do nothing: the bounded store of states also serves requests with the same beginning."""

    def close(self) -> None:
        self._reader.close()


class HeadLattices:
    """A LatticeModel that reads the target's hidden states."""

    def __init__(self, model: DFlashRunner, reader: StateReader) -> None:
        self._model = model
        self._reader = reader

    async def lattices(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        """Make a batch of lattices; see `LatticeModel.lattices`."""
        return await self._reader.run(self._model.lattices, requests, EMPTY_LATTICE)

    async def release(self, request_id: str) -> None:
        """Do nothing: the bounded store of states also serves requests with the same beginning."""

    def close(self) -> None:
        self._reader.close()


class FedDrafter:
    """A Drafter that makes lattices from received hidden states, and searches them.

    It keeps the states of the latest prefixes. Each draft says which states are missing, and is
    empty if more than the model's `max_unknown` are missing at the end of the prefix.
    """

    def __init__(self, model: DFlashRunner, path_scorer: PathScorer, target: TargetInfo) -> None:
        self._model = model
        self._path_scorer = path_scorer
        self._num_ids = target.vocab_size
        self._features = FeatureStore.beside(target)
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
        """Do nothing: the bounded store of states also serves requests with the same beginning."""

    def close(self) -> None:
        self._worker.close()

    def _read(self, requests: Sequence[DraftRequest]) -> tuple[list[Lattice], list[StatesWanted]]:
        try:
            for request in requests:
                self._keep(request)
            most = self._model.max_unknown
            found = [_find(self._features, request, most) for request in requests]
            whole = [one if one is not None and not one.first else None for one in found]
            lattices = _where_known(self._model.lattices, requests, whole, EMPTY_LATTICE)
        except Exception as error:  # torch may raise anything
            raise DrafterError(f"the drafter failed: {error}") from error
        num_known = [
            self._features.num_known(request.prefix[:-1], request.sampling.cache_salt)
            for request in requests
        ]
        return lattices, [StatesWanted(self._model.hidden_layers, number) for number in num_known]

    def _keep(self, request: DraftRequest) -> None:
        """Store the states that came with a request, if they continue the known ones."""
        rows = request.states
        if rows is None or rows.end > len(request.prefix):
            return
        token_ids, salt = request.prefix[: rows.end], request.sampling.cache_salt
        if rows.first <= self._features.num_known(token_ids, salt):
            self._features.extend(token_ids, rows.first, states_of(rows), salt)
