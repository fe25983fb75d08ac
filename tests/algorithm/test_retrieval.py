"""What followed before joins a lattice's candidates: small examples, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diffuspec.algorithm.own_text import OwnText, confidence_after
from diffuspec.algorithm.retrieval import Found, Retrieval, joined, raised
from diffuspec.algorithm.scoring import EMPTY_COLUMN, Column, make_column
from diffuspec.algorithm.search import PathSearch
from diffuspec.core.types import Draft, DraftRequest
from tests.algorithm.test_search import lattice_of
from tests.support.draft_requests import draft_request

EOS = 99


def request(prefix: Sequence[int], length: int = 4, max_nodes: int = 16) -> DraftRequest:
    return draft_request(prefix, length, max_nodes)


def draft_of(prefix: Sequence[int], *columns: dict[int, float], length: int = 4) -> Draft:
    search = PathSearch(None, eos_token_ids=[EOS], retrieval=Retrieval(2, [EOS]))
    return search.search_one(request(prefix, length), lattice_of(*columns))


def chance(draft: Draft, token_id: int, parent: int = -1) -> float:
    """Return the probability that a draft gives to a token after a node."""
    nodes = zip(draft.tree.token_ids, draft.tree.parents, draft.confidences, strict=True)
    return next(math.exp(c) for token, above, c in nodes if (token, above) == (token_id, parent))


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ([1, 2, 3, 1, 2], [], (3, 2)),
        ([1, 2, 3, 1, 2], [3], (1, 3)),
        ([1, 2, 3, 1, 2], [3, 1, 2], (3, 2)),  # 1 2 3 1 2 only ends where the text ends
        ([1, 2, 3, 1, 2], [7], None),
        ([1, 2, 3, 1, 2], [1], (2, 1)),  # a path that leaves the match finds another
        ([1, 2, 3], [], None),
        ([5, 5], [], (5, 1)),
    ],
)
def test_a_match_goes_on_along_a_path(
    text: list[int], path: list[int], expected: tuple[int, int] | None
) -> None:
    own = OwnText()
    match = own.follow(np.array(text, np.int32))
    for token_id in path:
        match = own.automaton.step(match, token_id)
    assert own.token_after(match) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], [6, 7, 8]),  # the answer begins as the prediction does
        ([6], [7, 8]),
        ([6, 9, 7], [8]),  # and goes on with it after words of its own
        ([6, 7, 8], []),  # up to its end
    ],
)
@pytest.mark.parametrize("predicted_only", [False, True])
def test_a_prediction_is_drafted(
    answer: list[int], expected: list[int], predicted_only: bool
) -> None:
    search = PathSearch(None, retrieval=Retrieval(2, (), predicted_only))
    asked = replace(
        request([1, 2, 3, *answer]), num_prompt_tokens=3, prediction=np.array([6, 7, 8], np.int32)
    )
    draft = search.search_one(asked, lattice_of(*({50 + i: 0.5} for i in range(len(expected)))))
    path = [token_id for token_id in draft.tree.token_ids if token_id < 50]
    assert path[: len(expected)] == expected


def test_retrieval_from_predictions_only_finds_nothing_without_one() -> None:
    assert Retrieval(2, predicted_only=True).follow(request([1, 2, 1])) is None


def test_a_token_that_both_propose_is_one_node_surer_than_either() -> None:
    prefix = [1, 2, 3, 1, 2]
    draft = draft_of(prefix, {3: 0.6, 4: 0.3}, length=1)
    assert sorted(draft.tree.token_ids) == [3, 4]
    assert chance(draft, 3) > max(0.6, math.exp(confidence_after(2)))
    assert chance(draft, 4) == pytest.approx(0.3 * (1 - chance(draft, 3)) / 0.4)


def test_a_token_that_only_the_text_knows_becomes_a_sibling() -> None:
    draft = draft_of([1, 2, 3, 1, 2], {7: 0.5, 8: 0.3}, length=1)
    assert sorted(draft.tree.token_ids) == [3, 7, 8]
    assert 0 < chance(draft, 3) < chance(draft, 7)


def test_branches_of_both_share_their_beginning() -> None:
    """The lattice goes on 3 6, the text 3 1 2."""
    draft = draft_of([1, 2, 3, 1, 2], {3: 0.7}, {6: 0.7}, length=3)
    places = set(zip(draft.tree.token_ids, draft.tree.parents, strict=True))
    root = draft.tree.token_ids.index(3)
    assert {(6, root), (1, root)} <= places
    assert draft.tree.token_ids.count(3) == 1


def test_the_text_goes_on_where_the_lattice_ends() -> None:
    draft = draft_of([1, 2, 3, 4, 5, 1, 2], {3: 0.9}, length=3)
    assert draft.tree.token_ids == (3, 4, 5)
    assert draft.tree.parents == (-1, 0, 1)
    assert draft.confidences[1] == pytest.approx(confidence_after(3))


def test_the_end_of_an_answer_is_not_drafted_from_the_text() -> None:
    draft = draft_of([2, EOS, 4, 2], {5: 0.9}, length=2)
    assert EOS not in draft.tree.token_ids


def test_no_node_is_surer_than_its_parent_is_and_none_is_twice() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        prefix = rng.integers(0, 4, 30).tolist()
        columns = [dict(zip((0, 1, 2), (0.5, 0.3, 0.1), strict=True)) for _ in range(3)]
        draft = draft_of(prefix, *columns, length=5)
        assert len(set(zip(draft.tree.parents, draft.tree.token_ids, strict=True))) == len(
            draft.tree.parents
        )
        assert all(confidence <= 0 for confidence in draft.confidences)
        for parent in {-1, *draft.tree.parents}:
            below = [
                math.exp(confidence)
                for above, confidence in zip(draft.tree.parents, draft.confidences, strict=True)
                if above == parent
            ]
            assert sum(below) <= 1 + 1e-6


def test_hypothetical_prefixes_leave_no_trace() -> None:
    used = PathSearch(None, retrieval=Retrieval(2))
    for prefix in ([1, 2, 3, 1, 2], [1, 2, 3, 1, 2, 3, 1], [1, 2, 3, 1, 2, 9], [1, 2, 3, 1, 2]):
        again = used.search_one(request(prefix), lattice_of({3: 0.9}))
        alone = PathSearch(None, retrieval=Retrieval(2)).search_one(
            request(prefix), lattice_of({3: 0.9})
        )
        assert (again.tree, again.confidences) == (alone.tree, alone.confidences)


def test_the_token_found_alone_fills_an_empty_column() -> None:
    found = Found(5, math.log(0.4))
    column = joined(EMPTY_COLUMN, found, 0.5)
    assert column.token_ids == [5] and column.logprobs == [found.confidence]
    assert raised([found.confidence], column, EMPTY_COLUMN, found) == [found.confidence]


def test_a_found_token_that_was_dropped_changes_no_confidence() -> None:
    found, before = Found(5, math.log(0.4)), make_column([7], [math.log(0.5)], 1.0)
    left = Column([7], [math.log(0.5)], [math.log(0.5)], math.log(0.5))
    assert raised([math.log(0.5)], left, before, found) == [math.log(0.5)]
