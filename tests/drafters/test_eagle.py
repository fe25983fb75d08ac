"""Trees of Hydra, EAGLE and EAGLE-2: shapes and rerank, on small examples worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from diffuspec.algorithm.draft_tree import depths
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters.eagle import TEMPLATE
from diffuspec.drafters.eagle2 import DynamicShape
from diffuspec.drafters.level_trees import LevelTrees, StaticShape, TreeShape
from diffuspec.drafters.medusa import TEMPLATE as MEDUSA_TEMPLATE
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.nodes import Candidates, Level
from tests.support.draft_requests import draft_request

EOS = 999
INFO = TargetInfo(vocab_size=1000, max_model_len=64, max_sequences=2, eos_token_ids=(EOS,))


class FixedHead:
    """Finds the same tokens after the same path; the levels that it was asked about are kept."""

    def __init__(self, after: Mapping[tuple[int, ...], Candidates] | None = None) -> None:
        self._after = after
        self.levels: list[list[tuple[int, ...]]] = []

    def begin(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> None:
        assert len({request.request_id for request in requests}) == len(requests)

    def candidates(self, level: Level, count: int) -> list[list[Candidates]]:
        self.levels.append([node.path for _, nodes in level for node in nodes])
        return [[self._below(node.path)[:count] for node in nodes] for _, nodes in level]

    def _below(self, path: tuple[int, ...]) -> Candidates:
        if self._after is not None:
            return self._after.get(path, [])
        return [(100 * len(path) + rank, -0.5 - rank) for rank in range(10)]


def request(name: str = "a", max_nodes: int = 64, depth: int = 20, **sampling: Any) -> DraftRequest:
    return draft_request([5, 6], depth, max_nodes, name, **sampling)


def draft(head: FixedHead, shape: TreeShape, *requests: DraftRequest) -> list[Draft]:
    asked = requests or (request(),)
    features = [Features(0, (torch.zeros(1, 4),))] * len(asked)
    return LevelTrees(head, shape, INFO).draft(asked, features)


def test_eagles_tree_has_the_shape_of_the_published_one() -> None:
    head = FixedHead()
    [made] = draft(head, StaticShape(TEMPLATE))
    assert made.tree.num_nodes == 25
    assert np.bincount(depths(made.tree)).tolist() == [0, 4, 8, 8, 3, 2]
    assert [len(level) for level in head.levels] == [1, 4, 4, 1, 1]
    assert head.levels[2] == [(0, 100), (0, 101), (0, 102), (1, 100)]
    assert head.levels[3] == [(0, 100, 200)] and head.levels[4] == [(0, 100, 200, 300)]


def test_hydras_tree_is_that_of_medusa() -> None:
    head = FixedHead()
    [made] = draft(head, StaticShape(MEDUSA_TEMPLATE))
    assert np.bincount(depths(made.tree)).tolist() == [0, 10, 28, 23, 2]
    assert head.levels[3] == [(0, 100, 200)]


def test_eagle_2_goes_on_with_the_likeliest_nodes_of_each_level() -> None:
    """Worked by hand: of the four nodes of the second level, the two with the highest sums."""
    after = {
        (): [(1, -0.2), (2, -2.0), (3, -5.0)],
        (1,): [(11, -1.0), (12, -1.5), (13, -4.0)],
        (2,): [(21, -0.1), (22, -0.2), (23, -4.0)],
        (1, 11): [(111, -0.1), (112, -3.0), (113, -3.0)],
        (1, 12): [(121, -0.6), (122, -3.0), (123, -3.0)],
        (2, 21): [(211, -9.0), (212, -9.0), (213, -9.0)],
    }
    head = FixedHead(after)
    shape = DynamicShape(num_candidates=2, max_depth=3, max_nodes=7)
    [made] = draft(head, shape)
    assert head.levels == [[()], [(1,), (2,)], [(1, 11), (1, 12)]]
    # Sums: 1 -0.2, 11 -1.2, 111 -1.3, 12 -1.7, 2 -2.0, 21 -2.1, 22 -2.2, 121 -2.3, 112 -4.2
    assert made.tree.token_ids == (1, 11, 111, 12, 2, 21, 22)
    assert made.tree.parents == (-1, 0, 1, 0, -1, 4, 4)
    assert made.confidences == pytest.approx((-0.2, -1.0, -0.1, -1.5, -2.0, -0.1, -0.2))


def test_eagle_2_has_its_authors_defaults() -> None:
    head = FixedHead()
    [made] = draft(head, DynamicShape())
    assert [len(level) for level in head.levels] == [1, 10, 10, 10, 10, 10]
    assert made.tree.num_nodes == 59 and max(depths(made.tree)) == 6


@pytest.mark.parametrize("shape", [StaticShape(TEMPLATE), DynamicShape()])
def test_a_draft_keeps_to_what_was_asked_for(shape: TreeShape) -> None:
    head = FixedHead()
    small, short, other = draft(
        head, shape, request(max_nodes=3), request(depth=2), request("b", depth=1)
    )
    assert small.tree.token_ids == (0, 100, 1), "ties go to the one found first"
    assert max(depths(short.tree)) == 2 and max(depths(other.tree)) == 1
    first = [len(level) for level in head.levels[:2]]
    assert first[0] == 2, "requests of one id are drafted for one after the other"


@pytest.mark.parametrize("shape", [StaticShape(TEMPLATE), DynamicShape()])
def test_nothing_is_drafted_after_the_end_of_an_answer(shape: TreeShape) -> None:
    after = {(): [(EOS, -0.1), (4, -3.0)], (EOS,): [(5, -0.1)], (4,): [(6, -0.1)]}
    [ended] = draft(FixedHead(after), shape)
    assert ended.tree.token_ids == (EOS, 4, 6) and ended.num_tokens_before_eos == 0
    [ignored] = draft(FixedHead(after), shape, request(ignore_eos=True))
    assert ignored.tree.token_ids == (EOS, 5, 4, 6)
