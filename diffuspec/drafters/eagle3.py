"""EAGLE-3: a layer on the target's hidden states in three places, and EAGLE-2's tree.

See models/heads/eagle3 for the head. For differences from the original see `eagle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import Eagle3Config
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.eagle2 import DynamicShape
from diffuspec.drafters.kind import DrafterKind, Target

if TYPE_CHECKING:
    from diffuspec.drafters.head_drafter import HeadDrafter


def _load(config: Eagle3Config, target: Target, path_scorer: PathScorer | None) -> HeadDrafter:
    from diffuspec.drafters.head_drafter import HeadDrafter, layers_beside  # these import torch
    from diffuspec.drafters.level_trees import LevelTrees
    from diffuspec.models.heads.eagle3 import Eagle3Head
    from diffuspec.models.heads.eagle_runner import EagleRunner

    layers = layers_beside(target)
    head = Eagle3Head.load(config.path, layers)
    model = EagleRunner(head, layers, target.info)
    trees = LevelTrees(model, DynamicShape(), target.info)
    return HeadDrafter(target, trees, head.hidden_layers)


KIND = DrafterKind(Eagle3Config, _load, observes=True)
