"""Medusa drafts its published tree of what the heads find likely; small examples, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from diffuspec.algorithm.draft_tree import depths, path_to
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft
from diffuspec.drafters.medusa import TEMPLATE, MedusaTrees
from diffuspec.drafters.tree_template import TemplateNode
from diffuspec.models.heads.features import Features
from tests.support.draft_requests import draft_request

EOS = 9
INFO = TargetInfo(vocab_size=1000, max_model_len=64, max_sequences=2, eos_token_ids=(EOS,))


class FixedHeads:
    """Head i finds 100 * i + rank likely, with fixed probabilities."""

    def __init__(self, num_heads: int = 4, logprobs: Sequence[float] = ()) -> None:
        self._logprobs = logprobs or [-0.5 - rank for rank in range(10)]
        self._num_heads = num_heads

    def candidates(self, requests: Sequence[Any], states: Any, count: int) -> list[Any]:
        ranked = list(enumerate(self._logprobs[:count]))
        by_head = [[(100 * h + r, one) for r, one in ranked] for h in range(self._num_heads)]
        return [by_head for _ in requests]


def draft(heads: FixedHeads, max_nodes: int = 64, depth: int = 20) -> Draft:
    request = draft_request([5, 6], depth, max_nodes, ignore_eos=True)
    features = Features(0, (torch.zeros(1, 4),))
    [made] = MedusaTrees(cast(Any, heads), INFO).draft([request], [features])
    return made


def test_the_static_tree_has_the_shape_of_the_published_one() -> None:
    def ranks_of(node: TemplateNode, above: tuple[int, ...]) -> list[tuple[int, ...]]:
        paths = [(*above, rank) for rank in range(len(node.children))]
        below = [ranks_of(c, p) for c, p in zip(node.children, paths, strict=True)]
        return [*paths, *(path for paths in below for path in paths)]

    paths = ranks_of(TEMPLATE, ())
    assert len(paths) == 63
    assert np.bincount([len(path) for path in paths]).tolist() == [0, 10, 28, 23, 2]
    for path in [(9, 0), (1, 6), (0, 9), (0, 0, 9), (0, 7, 0), (1, 0, 1), (2, 0, 0), (0, 0, 0, 1)]:
        assert path in paths
    for path in [(9, 1), (1, 7), (0, 8, 0), (1, 1, 0), (3, 0, 0), (0, 1, 0, 0)]:
        assert path not in paths


def test_the_whole_tree_is_drafted_from_each_head_in_turn() -> None:
    made = draft(FixedHeads())
    tree = made.tree
    assert tree.num_nodes == 63
    for node, depth in enumerate(depths(tree)):
        assert tree.token_ids[node] // 100 == depth - 1
        assert made.confidences[node] == -0.5 - tree.token_ids[node] % 100
    assert [tree.token_ids[node] for node in path_to(tree, 0)] == [0]


def test_the_nodes_likeliest_to_be_reached_come_first() -> None:
    sure = FixedHeads(logprobs=[-0.1, -2.5, *[-4.0] * 8])
    assert draft(sure, max_nodes=4).tree.token_ids == (0, 100, 200, 300)
    assert draft(sure, max_nodes=6).tree.num_nodes == 6
    assert max(depths(draft(sure, depth=2).tree)) == 2
    assert max(depths(draft(FixedHeads(num_heads=2)).tree)) == 2
    assert draft(FixedHeads(logprobs=[-0.1])).tree.token_ids == (0, 100, 200, 300)
