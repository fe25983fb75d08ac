"""Hydra: Medusa's tree, with heads that see the tokens drafted before theirs.

See models/heads/hydra for the heads, and `medusa` for the tree and for what is different here: the
same, but that each node's candidates are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import HydraConfig
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.medusa import TEMPLATE

if TYPE_CHECKING:
    from diffuspec.drafters.head_drafter import HeadDrafter


def _load(config: HydraConfig, target: Target, path_scorer: PathScorer | None) -> HeadDrafter:
    from diffuspec.drafters.head_drafter import HeadDrafter  # these import torch
    from diffuspec.drafters.level_trees import LevelTrees, StaticShape
    from diffuspec.models.heads.features import FeatureStore
    from diffuspec.models.heads.hydra import HydraDraftModel, HydraHeads
    from diffuspec.models.heads.target_layers import target_layers

    assert target.verifier is not None
    layers = target_layers(target.verifier, target.path)
    model = HydraDraftModel(HydraHeads.load(config.path, layers), layers, target.info)
    max_requests = target.info.max_sequences
    trees = LevelTrees(model, StaticShape(TEMPLATE), target.info, max_requests)
    features = FeatureStore(2 * max_requests, keeps_all=False)
    return HeadDrafter(trees, features, target.info, target.verifier)


KIND = DrafterKind(HydraConfig, _load, needs_path_scorer=False, has_model=False, observes=True)
