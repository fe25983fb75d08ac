"""DFlash: a block-diffusion drafter that reads the target's hidden states, and its path search.

See models/heads/dflash for the model. Its authors verify the likeliest token of every position;
here its block is a lattice, searched as that of a diffusion LM is.
"""

from __future__ import annotations

from diffuspec.core.drafter_config import DFlashConfig
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.kind import DrafterKind, Target


def _load(config: DFlashConfig, target: Target, path_scorer: PathScorer | None) -> DiffuSpecDrafter:
    from diffuspec.algorithm.lattice import Pruning  # these import torch
    from diffuspec.drafters.head_drafter import HeadLattices, StateReader, layers_beside
    from diffuspec.models.heads.dflash import DFlashModel
    from diffuspec.models.heads.dflash_runner import DFlashRunner

    assert path_scorer is not None, "the registry says that it is needed"
    layers = layers_beside(target)
    model = DFlashModel.load(config.path, layers)
    ends = target.info.eos_token_ids
    pruning = Pruning(config.candidate_mass, config.max_candidates, ends)
    lattices = DFlashRunner(model, layers, target.info, pruning)
    reader = StateReader(target, model.settings.target_layer_ids, max_unknown=lattices.max_unknown)
    return DiffuSpecDrafter(HeadLattices(lattices, reader), path_scorer)


KIND = DrafterKind(DFlashConfig, _load, needs_path_scorer=True, has_model=False, observes=True)
