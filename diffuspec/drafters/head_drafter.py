"""Drafters that read the target's hidden states: they observe it, and run beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from diffuspec.algorithm.lattice import EMPTY_LATTICE
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import LAST_LAYER, ObservableVerifier, Observation
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest, Lattice
from diffuspec.drafters.kind import Target
from diffuspec.models.draft_requests import check_draft_request
from diffuspec.models.heads.features import Features, FeatureStore
from diffuspec.models.heads.target_layers import TargetLayers, target_layers
from diffuspec.models.worker import Worker

T = TypeVar("T")


class DraftHeads(Protocol):
    """Makes drafts from hidden states."""

    def draft(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> list[Draft]:
        """Return one draft per request, in order. Called from one thread at a time."""
        ...


class FeatureLattices(Protocol):
    """Makes lattices from hidden states."""

    @property
    def max_unknown(self) -> int:
        """Tokens before a prefix's last whose states may be missing."""
        ...

    def lattices(
        self, requests: Sequence[DraftRequest], features: Sequence[Features]
    ) -> list[Lattice]:
        """Return one lattice per request, in order. Called from one thread at a time."""
        ...


def load_heads(
    target: Target, make_heads: Callable[[TargetLayers], DraftHeads], *, keeps_all: bool = True
) -> HeadDrafter:
    """Return a drafter beside the target, with the heads that are made for its layers.

    keeps_all: False keeps each prefix's last hidden state alone. Raises ModelLoadError.
    """
    heads = make_heads(layers_beside(target))
    return HeadDrafter(heads, StateReader(target, (LAST_LAYER,), keeps_all=keeps_all))


def layers_beside(target: Target) -> TargetLayers:
    """Return the layers of the target in this process. Raises ModelLoadError."""
    assert target.verifier is not None, "heads observe the target in this process"
    return target_layers(target.verifier, target.path)


class StateReader:
    """Observes the verifier in this process, and runs drafters on the hidden states that it kept.

    It observes every verification, since a prefix may be read before its draft is asked for. A
    prefix whose states are not known has no draft: one that the target read before this reader
    existed or, if all states are needed, a hypothetical one.
    """

    num_top = 0
    is_active = True

    def __init__(
        self,
        target: Target,
        hidden_layers: tuple[int, ...],
        *,
        keeps_all: bool = True,
        max_unknown: int = 0,
    ) -> None:
        """max_unknown: tokens before a prefix's last whose states may be missing."""
        assert target.verifier is not None, "it observes the target in this process"
        self.hidden_layers = hidden_layers
        self._max_unknown = max_unknown
        self._features = FeatureStore(2 * target.info.max_sequences, keeps_all)
        self._num_ids = target.info.vocab_size
        self._verifier: ObservableVerifier = target.verifier
        self._worker = Worker("drafter", is_inline=target.info.max_sequences == 1)
        self._verifier.add_observer(self)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep the hidden states of what was committed."""
        for one in observations:
            if one.hidden_states:
                self._features.add(one)

    async def run(
        self,
        work: Callable[[Sequence[DraftRequest], Sequence[Features]], list[T]],
        requests: Sequence[DraftRequest],
        nothing: T,
    ) -> list[T]:
        """Do the work, in a thread, for the requests whose states are known.

        The result of the others is `nothing`. Raises InvalidRequestError before any work,
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

    def _run(
        self,
        work: Callable[[Sequence[DraftRequest], Sequence[Features]], list[T]],
        requests: Sequence[DraftRequest],
        nothing: T,
    ) -> list[T]:
        found = [self._features.find(request.prefix, self._max_unknown) for request in requests]
        known = [place for place, features in enumerate(found) if features is not None]
        results = [nothing] * len(requests)
        if known:
            features = [one for one in found if one is not None]
            try:
                made = work([requests[place] for place in known], features)
            except Exception as error:  # torch raises anything
                raise DrafterError(f"the draft heads failed: {error}") from error
            for place, result in zip(known, made, strict=True):
                results[place] = result
        return results


class HeadDrafter:
    """A Drafter of heads that read the target's hidden states."""

    def __init__(self, heads: DraftHeads, reader: StateReader) -> None:
        self._heads = heads
        self._reader = reader

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft a batch; see `Drafter.draft`."""
        started = time.perf_counter()
        drafts = await self._reader.run(self._heads.draft, requests, EMPTY_DRAFT)
        seconds = time.perf_counter() - started
        return [replace(draft, draft_seconds=seconds) for draft in drafts]

    async def release(self, request_id: str) -> None:
        """Keep the states, a bounded number: they serve requests with the same beginning."""

    def close(self) -> None:
        self._reader.close()


class HeadLattices:
    """A LatticeModel that reads the target's hidden states."""

    def __init__(self, model: FeatureLattices, reader: StateReader) -> None:
        self._model = model
        self._reader = reader

    async def lattices(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        """Make a batch of lattices; see `LatticeModel.lattices`."""
        return await self._reader.run(self._model.lattices, requests, EMPTY_LATTICE)

    async def release(self, request_id: str) -> None:
        """Keep the states, a bounded number: they serve requests with the same beginning."""

    def close(self) -> None:
        self._reader.close()
