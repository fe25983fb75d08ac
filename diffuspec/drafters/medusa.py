"""Medusa: heads on the target's last hidden state guess the next tokens, all at once.

The draft is a static tree over the heads' candidates: the 63 nodes that the authors found best for
Vicuna 7B (mc_sim_7b_63 of FasterDecoding/Medusa). The heads do not see each other's tokens. See
models/heads/medusa for the heads. Differences from the original: tokens are verified exactly, not
by typical acceptance; the heads add the sampling noise of their positions, so that they guess the
tokens that will be drawn; and if the tree is larger than requested, the nodes likeliest to be
reached are drafted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import MedusaConfig
from diffuspec.core.interfaces import PathScorer, TargetInfo
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.tree_builder import TreeBuilder
from diffuspec.drafters.tree_template import TemplateNode, make_template

if TYPE_CHECKING:
    from diffuspec.drafters.head_drafter import HeadDrafter
    from diffuspec.models.heads.features import Features
    from diffuspec.models.heads.medusa import MedusaDraftModel
    from diffuspec.models.heads.nodes import Candidates

NUM_CANDIDATES = 10  # candidates of each head

# The static tree; its depths have 10, 28, 23 and 2 nodes.
TEMPLATE = make_template(
    (
        (10,),
        (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
        (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
        (2,),
    )
)


class MedusaTrees:
    """Grows the static tree from the heads' candidates."""

    def __init__(self, model: MedusaDraftModel, target: TargetInfo) -> None:
        self._model = model
        self._eos_token_ids = frozenset(target.eos_token_ids)

    def draft(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> list[Draft]:
        states = [known.last for known in features]
        by_request = self._model.candidates(requests, states, NUM_CANDIDATES)
        pairs = zip(requests, by_request, strict=True)
        return [self._grow(request, candidates) for request, candidates in pairs]

    def _grow(self, request: DraftRequest, by_head: Sequence[Candidates]) -> Draft:
        def expand(node: TemplateNode, depth: int) -> Iterator[tuple[int, float, TemplateNode]]:
            if depth <= len(by_head):
                ranked = zip(by_head[depth - 1], node.children, strict=False)
                yield from ((*candidate, child) for candidate, child in ranked)

        builder = TreeBuilder(request, self._eos_token_ids)
        builder.add_likeliest(TEMPLATE, expand, request.max_nodes, request.num_draft_tokens)
        return builder.draft()


def _load(config: MedusaConfig, target: Target, path_scorer: PathScorer | None) -> HeadDrafter:
    from diffuspec.drafters.head_drafter import HeadDrafter, layers_beside  # these import torch
    from diffuspec.models.heads.medusa import MedusaDraftModel, MedusaHeads

    layers = layers_beside(target)
    model = MedusaDraftModel(MedusaHeads.load(config.path, layers), layers, target.info)
    return HeadDrafter(target, MedusaTrees(model, target.info))


KIND = DrafterKind(MedusaConfig, _load, observes=True)
