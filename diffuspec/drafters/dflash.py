"""DFlash: a block-diffusion drafter that reads the target's hidden states, and its path search.

See models/heads/dflash for the model. Its authors verify the likeliest token of every position;
here its block becomes a lattice, which is searched like that of any diffusion LM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import DFlashConfig, DFlashRemoteConfig
from diffuspec.core.interfaces import PathScorer, TargetInfo
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.kind import DrafterKind, Target

if TYPE_CHECKING:
    from diffuspec.models.heads.dflash_runner import DFlashRunner
    from diffuspec.models.heads.target_layers import TargetLayers


def load_lattices(
    config: DFlashConfig | DFlashRemoteConfig, layers: TargetLayers, info: TargetInfo
) -> DFlashRunner:
    """Load the model that makes lattices from the target's hidden states. Raises ModelLoadError."""
    from diffuspec.algorithm.lattice import Pruning  # these import torch
    from diffuspec.models.heads.dflash import DFlashModel
    from diffuspec.models.heads.dflash_runner import DFlashRunner

    pruning = Pruning(config.candidate_mass, config.max_candidates, info.eos_token_ids)
    return DFlashRunner(DFlashModel.load(config.path, layers), layers, info, pruning)


def _load(config: DFlashConfig, target: Target, path_scorer: PathScorer | None) -> DiffuSpecDrafter:
    from diffuspec.drafters.head_drafter import HeadLattices, StateReader, layers_beside  # torch

    assert path_scorer is not None, "the registry says that it is needed"
    lattices = load_lattices(config, layers_beside(target), target.info)
    reader = StateReader(target, lattices.hidden_layers, max_unknown=lattices.max_unknown)
    return DiffuSpecDrafter(HeadLattices(lattices, reader), path_scorer)


KIND = DrafterKind(DFlashConfig, _load, needs_path_scorer=True, observes=True)
