"""DiffuSpec's drafter: the lattice of a diffusion LM, searched with a causal proxy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.interfaces import LatticeModel, PathScorer
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters.kind import DrafterKind, Target


class DiffuSpecDrafter:
    """A Drafter composed of the two roles, which may run on different machines."""

    def __init__(self, lattice_model: LatticeModel, path_scorer: PathScorer) -> None:
        self.lattice_model = lattice_model
        self._path_scorer = path_scorer

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request: lattices, then paths. Raises DrafterError."""
        started = time.monotonic()
        lattices = await self.lattice_model.lattices(requests)
        seconds = time.monotonic() - started
        drafts = await self._path_scorer.search(requests, lattices)
        return [
            replace(draft, draft_seconds=seconds, num_refreshed=lattice.num_refreshed)
            for draft, lattice in zip(drafts, lattices, strict=True)
        ]

    async def release(self, request_id: str) -> None:
        await self.lattice_model.release(request_id)

    def close(self) -> None:
        """Close the diffusion LM. Whoever created the path scorer closes it."""
        self.lattice_model.close()


def _load(
    config: DiffuSpecConfig, target: Target, path_scorer: PathScorer | None
) -> DiffuSpecDrafter:
    from diffuspec.models.diffusion import DiffusionDrafter  # imports torch
    from diffuspec.text.tokenizer import check_shared_vocabulary  # imports transformers

    assert path_scorer is not None, "the registry says that it is needed"
    if target.vocabulary is not None:
        check_shared_vocabulary(config.path, target.vocabulary, target.info.vocab_size)
    return DiffuSpecDrafter(DiffusionDrafter.load(config, target.info), path_scorer)


KIND = DrafterKind(
    DiffuSpecConfig, _load, needs_path_scorer=True, model_module="diffuspec.models.diffusion"
)
