"""EAGLE-2: EAGLE's head with a tree shaped by its confidence.

Li et al., EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees (arXiv 2406.16858).
At each of six levels the ten nodes likeliest to be reached get children; of all these nodes, the 59
likeliest are drafted (the defaults of topK_generate in SafeAILab/EAGLE's cnets1.py). For
differences from the original see `eagle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import Eagle2Config
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.eagle import load_eagle
from diffuspec.drafters.kind import DrafterKind, Target

if TYPE_CHECKING:
    from diffuspec.drafters.head_drafter import HeadDrafter
    from diffuspec.models.heads.nodes import DraftNode


class DynamicShape:
    """The tree of the nodes likeliest to be reached."""

    def __init__(self, num_candidates: int = 10, max_depth: int = 6, max_nodes: int = 59) -> None:
        self.num_candidates = num_candidates
        self.max_depth = max_depth
        self.max_nodes = max_nodes

    def width(self, node: DraftNode) -> int:
        return self.num_candidates

    def to_grow(self, level: Sequence[DraftNode]) -> list[DraftNode]:
        best_first = sorted(level, key=lambda node: node.score, reverse=True)
        return best_first[: self.num_candidates]


def _load(config: Eagle2Config, target: Target, path_scorer: PathScorer | None) -> HeadDrafter:
    return load_eagle(config, target, DynamicShape())


KIND = DrafterKind(Eagle2Config, _load, observes=True)
