"""Drafts for a structured output hold to it, and go on with what it dictates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import path_to
from diffuspec.algorithm.lattice import EMPTY_LATTICE
from diffuspec.algorithm.search import PathSearch
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest, Lattice

TEXTS = ([1, 2, 3, 4, 5], [1, 7, 8])


class TextGuide:
    """Lets one of a few texts follow."""

    def next_tokens(self, path: Sequence[int], candidates: Sequence[int]) -> list[int]:
        size = len(path)
        follow = {text[size] for text in TEXTS if len(text) > size and text[:size] == [*path]}
        if len(follow) == 1:
            return list(follow)
        return [token for token in candidates if token in follow]

    def is_ready(self, requests: Sequence[DraftRequest]) -> bool:
        return True

    def prepare(self, requests: Sequence[DraftRequest]) -> None:
        raise AssertionError("it is ready")

    def guide(self, request: DraftRequest) -> TextGuide:
        return self


def request(shape: Any, max_nodes: int = 16, num_draft_tokens: int = 6) -> DraftRequest:
    prefix = np.array([9], np.int32)
    return DraftRequest("r", prefix, num_draft_tokens, shape, max_nodes, 1.0, SamplingParams())


def lattice(*columns: tuple[int, ...]) -> Lattice:
    """Each column's candidates, each half as likely as the one before."""
    width = max(map(len, columns))
    ids = np.full((len(columns), width), -1, np.int32)
    logprobs = np.full((len(columns), width), -np.inf, np.float32)
    for row, column in enumerate(columns):
        ids[row, : len(column)] = column
        logprobs[row, : len(column)] = np.log([0.5 ** (1 + place) for place in range(len(column))])
    sizes = np.array([len(column) for column in columns], np.int32)
    return Lattice(ids, logprobs, sizes, len(columns))


def paths(draft: Any) -> set[tuple[int, ...]]:
    tree = draft.tree
    return {tuple(tree.token_ids[i] for i in path_to(tree, node)) for node in range(tree.num_nodes)}


async def test_nodes_that_violate_the_form_give_way_to_others() -> None:
    [draft] = await PathSearch(None, guides=TextGuide()).search(
        [request("best_first")], [lattice((6, 1), (7, 2), (8, 3))]
    )
    # Three columns reach (1, 2, 3) and (1, 7, 8); what is known to come goes on to depth 6.
    assert paths(draft) == {
        *(tuple(text[:size]) for text in TEXTS for size in range(1, len(text) + 1)),
    }


async def test_known_text_is_drafted_without_candidates() -> None:
    for columns in (EMPTY_LATTICE, lattice((6,), (2,))):
        [draft] = await PathSearch(None, guides=TextGuide()).search(
            [request("best_first")], [columns]
        )
        expected = (
            {(1,)} if columns is EMPTY_LATTICE else {tuple(TEXTS[0][:n]) for n in range(1, 6)}
        )
        assert paths(draft) == expected


@pytest.mark.parametrize("shape", ["path", "beams"])
async def test_paths_end_where_they_violate_the_form(shape: str) -> None:
    [draft] = await PathSearch(None, guides=TextGuide()).search(
        [request(shape)], [lattice((1,), (2,), (9, 3), (4,))]
    )
    assert paths(draft) == {(1,), (1, 2)} | (
        {(1, 2, 3), (1, 2, 3, 4)} if shape == "beams" else set()
    )


async def test_a_guided_draft_keeps_to_its_bounds() -> None:
    [draft] = await PathSearch(None, guides=TextGuide()).search(
        [request("best_first", max_nodes=3, num_draft_tokens=2)], [lattice((1,), (7, 2), (8,))]
    )
    assert paths(draft) == {(1,), (1, 7), (1, 2)}
