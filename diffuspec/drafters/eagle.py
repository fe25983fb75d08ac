"""EAGLE: one layer extrapolates the target's hidden states; a static tree of 25 nodes.

The tree is mc_sim_7b_63 of SafeAILab/EAGLE's choices.py. See models/heads/eagle for the head.
Differences from the original: tokens are verified by drawing the target's own token at every node,
not by rejection sampling, and the head adds the same sampling noise; prefix tokens without known
hidden states are left out of its attention; and if the tree is larger than requested, the nodes
likeliest to be reached are drafted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import Eagle2Config, EagleConfig
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.tree_template import make_template

if TYPE_CHECKING:
    from diffuspec.drafters.head_drafter import HeadDrafter
    from diffuspec.drafters.level_trees import TreeShape

# The static tree; its depths have 4, 8, 8, 3 and 2 nodes.
TEMPLATE = make_template(((4,), (3, 2, 2, 1), (3, 2, 2, 1), (3,), (2,)))


def load_eagle(config: EagleConfig | Eagle2Config, target: Target, shape: TreeShape) -> HeadDrafter:
    """Load an EAGLE head that drafts trees of a shape. Raises ModelLoadError."""
    from diffuspec.drafters.head_drafter import HeadDrafter, layers_beside  # these import torch
    from diffuspec.drafters.level_trees import LevelTrees
    from diffuspec.models.heads.eagle import EagleHead
    from diffuspec.models.heads.eagle_runner import EagleRunner

    layers = layers_beside(target)
    model = EagleRunner(EagleHead.load(config.path, layers), layers, target.info)
    return HeadDrafter(target, LevelTrees(model, shape, target.info))


def _load(config: EagleConfig, target: Target, path_scorer: PathScorer | None) -> HeadDrafter:
    from diffuspec.drafters.level_trees import StaticShape  # imports torch

    return load_eagle(config, target, StaticShape(TEMPLATE))


KIND = DrafterKind(EagleConfig, _load, observes=True)
