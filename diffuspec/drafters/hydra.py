"""Hydra: Medusa's tree, with heads that see the tokens drafted before their own.

See models/heads/hydra for the heads, and `medusa` for the tree and the differences from the
original. Unlike in Medusa, each node has its own candidates.
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
    from diffuspec.drafters.head_drafter import HeadDrafter, layers_beside  # these import torch
    from diffuspec.drafters.level_trees import LevelTrees, StaticShape
    from diffuspec.models.heads.hydra import HydraDraftModel, HydraHeads

    layers = layers_beside(target)
    model = HydraDraftModel(HydraHeads.load(config.path, layers), layers, target.info)
    trees = LevelTrees(model, StaticShape(TEMPLATE), target.info)
    return HeadDrafter(target, trees)


KIND = DrafterKind(HydraConfig, _load, observes=True)
