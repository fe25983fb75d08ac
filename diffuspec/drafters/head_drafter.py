"""Drafters that read the target's hidden states: they observe it, and run beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import LAST_LAYER, ObservableVerifier, Observation, TargetInfo
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest
from diffuspec.drafters.kind import Target
from diffuspec.models.draft_rows import check_draft_request
from diffuspec.models.heads.features import Features, FeatureStore
from diffuspec.models.heads.target_layers import TargetLayers, target_layers
from diffuspec.models.worker import Worker


class DraftHeads(Protocol):
    """What makes drafts of hidden states."""

    def draft(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> list[Draft]:
        """Return one draft per request, in order. Called from one thread at a time."""
        ...


def load_heads(
    target: Target, make_heads: Callable[[TargetLayers], DraftHeads], *, keeps_all: bool = True
) -> HeadDrafter:
    """Return a drafter beside the target, with the heads that are made for its layers.

    keeps_all: False keeps each prefix's last hidden state alone. Raises ModelLoadError.
    """
    assert target.verifier is not None, "heads observe the target in this process"
    heads = make_heads(target_layers(target.verifier, target.path))
    features = FeatureStore(2 * target.info.max_sequences, keeps_all)
    return HeadDrafter(heads, features, target.info, target.verifier)


class HeadDrafter:
    """A Drafter and an Observer of the verifier in this process.

    It observes every verification: a prefix may have been read before anybody asks for its draft.
    A request whose last state is not known has an empty draft: such as a hypothetical prefix, and
    one that the target read before this drafter was loaded.
    """

    num_top = 0
    hidden_layers = (LAST_LAYER,)
    is_active = True

    def __init__(
        self,
        heads: DraftHeads,
        features: FeatureStore,
        target: TargetInfo,
        verifier: ObservableVerifier,
    ) -> None:
        self._heads = heads
        self._features = features
        self._num_ids = target.vocab_size
        self._verifier = verifier
        self._worker = Worker("drafter", is_inline=target.max_sequences == 1)
        verifier.add_observer(self)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep the hidden states of what was committed."""
        for one in observations:
            if one.hidden_states:
                self._features.add(one)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft a batch; see `Drafter.draft`."""
        for request in requests:
            check_draft_request(request, self._num_ids)
        return await self._worker.run(self._draft, list(requests)) if requests else []

    async def release(self, request_id: str) -> None:
        """Keep what is known: it serves the next request that begins alike, and is bounded."""

    def close(self) -> None:
        self._verifier.remove_observer(self)
        self._worker.close()

    def _draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        started = time.perf_counter()
        found = [self._features.find(request.prefix) for request in requests]
        known = [place for place, features in enumerate(found) if features is not None]
        drafts = [EMPTY_DRAFT] * len(requests)
        if known:
            features = [one for one in found if one is not None]
            try:
                made = self._heads.draft([requests[place] for place in known], features)
            except Exception as error:  # torch raises anything
                raise DrafterError(f"the draft heads failed: {error}") from error
            for place, draft in zip(known, made, strict=True):
                drafts[place] = draft
        seconds = time.perf_counter() - started
        return [replace(draft, draft_seconds=seconds) for draft in drafts]
