"""DiffuSpec's drafter: a diffusion LM's lattice, searched with a causal proxy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from diffuspec.core.interfaces import LatticeModel, PathScorer
from diffuspec.core.types import Draft, DraftRequest


class DiffuSpecDrafter:
    """A Drafter composed of the two roles that may live on different machines."""

    def __init__(self, lattice_model: LatticeModel, path_scorer: PathScorer) -> None:
        self.lattice_model = lattice_model
        self.path_scorer = path_scorer

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request: lattices, then paths. Raises DrafterError."""
        started = time.monotonic()
        lattices = await self.lattice_model.lattices(requests)
        seconds = time.monotonic() - started
        drafts = await self.path_scorer.search(requests, lattices)
        return [replace(draft, draft_seconds=seconds) for draft in drafts]

    async def release(self, request_id: str) -> None:
        await self.lattice_model.release(request_id)
