import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.draft_tree import best_path, chain, depths, path_to, prune_draft, validate
from diffuspec.algorithm.search import PathSearch
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest, Lattice

EOS = 99
PREFIX = np.arange(40, dtype=np.int32)


class TrigramProxy:
    """An arbitrary ln P(token | last two tokens) that counts the scores computed."""

    max_context_tokens = 2

    def __init__(self):
        self.num_scores = 0

    def begin(self, context, salt=None):
        return tuple(context[-2:])

    def expand(self, states, candidates):
        self.num_scores += len(states) * len(candidates)
        logprobs = [[self.logprob(state, token) for token in candidates] for state in states]
        return logprobs, [[(*state, token)[-2:] for token in candidates] for state in states]

    def logprob(self, state, token):
        scrambled = 43758.5453 * math.sin(12.9898 * state[0] + 78.233 * state[1] + 37.719 * token)
        return math.log(0.001 + abs(scrambled) % 1)


class ForbiddenProxy:
    max_context_tokens = 2

    def begin(self, context, salt=None):
        raise AssertionError("the proxy was asked")

    expand = begin


def lattice_of(*columns):
    """A lattice from {token id: probability} columns."""
    width = max((len(column) for column in columns), default=1)
    token_ids = np.full((len(columns), width), -1, np.int32)
    logprobs = np.full((len(columns), width), -np.inf, np.float32)
    for i, column in enumerate(columns):
        token_ids[i, : len(column)] = list(column)
        logprobs[i, : len(column)] = np.log(list(column.values()))
    sizes = np.array([len(column) for column in columns], np.int32)
    return Lattice(token_ids, logprobs, sizes, len(columns))


def random_columns(seed, max_columns=4):
    rng = np.random.default_rng(seed)
    columns = []
    for _ in range(rng.integers(1, max_columns + 1)):
        size = rng.integers(1, 4)
        probabilities = np.sort(rng.dirichlet(np.ones(size)))[::-1] * rng.uniform(0.6, 0.999) + 1e-4
        tokens = rng.choice(12, size, replace=False).tolist()
        columns.append(dict(zip(tokens, probabilities.tolist(), strict=True)))
    return columns


def request(shape="path", *, max_nodes=1000, weight=0.5):
    return DraftRequest("r", PREFIX, 20, shape, max_nodes, weight, SamplingParams())


def draft_of(columns, shape="path", *, proxy=None, beam_width=3, max_nodes=1000, weight=0.5):
    search = PathSearch(proxy, beam_width=beam_width, eos_token_ids=[EOS])
    wanted = request(shape, max_nodes=max_nodes, weight=weight)
    return search.search_one(wanted, lattice_of(*columns))


def eq_8(columns, path, weight, proxy):
    """S(path), computed independently of the search."""
    history, total = PREFIX.tolist(), 0.0
    for column, token in zip(columns, path, strict=True):
        proxy_term = proxy.logprob(tuple(history[-2:]), token)
        total += weight * math.log(column[token]) + (1 - weight) * proxy_term
        history.append(token)
    return total


def confidence(columns, path, weight, proxy):
    """ln of the drafter's mass on the last column times this candidate's share of Eq. 8 there."""
    column = columns[len(path) - 1]
    if len(column) == 1 or proxy is None:
        return math.log(column[path[-1]])
    state = (*PREFIX.tolist(), *path[:-1])[-2:]
    terms = {
        token: math.exp(weight * math.log(p) + (1 - weight) * proxy.logprob(state, token))
        for token, p in column.items()
    }
    return math.log(sum(column.values()) * terms[path[-1]] / sum(terms.values()))


def paths_of(tree):
    return [tuple(tree.token_ids[i] for i in path_to(tree, n)) for n in range(tree.num_nodes)]


seeds = st.integers(0, 10_000)
weights = st.sampled_from([0.0, 0.3, 0.5, 0.9])
shapes = st.sampled_from(["path", "beams", "best_first"])


@settings(deadline=None)
@given(seeds, weights)
def test_a_wide_beam_finds_the_best_path_of_eq_8(seed, weight):
    columns, proxy = random_columns(seed), TrigramProxy()
    paths = itertools.product(*columns)
    best = max(paths, key=lambda path: eq_8(columns, path, weight, proxy))
    draft = draft_of(columns, proxy=proxy, beam_width=81, weight=weight)
    assert draft.tree == chain(best)


@settings(deadline=None)
@given(seeds)
def test_a_narrow_beam_keeps_the_best_beginnings(seed):
    columns, proxy = random_columns(seed, max_columns=6), TrigramProxy()
    beams: list[tuple[int, ...]] = [()]
    for depth, column in enumerate(columns, 1):
        grown = [(*beam, token) for beam in beams for token in column]
        grown.sort(key=lambda path: -eq_8(columns[:depth], path, 0.5, proxy))
        beams = grown[:2]
    assert draft_of(columns, proxy=proxy, beam_width=2).tree == chain(beams[0])
    merged = draft_of(columns, "beams", proxy=proxy, beam_width=2).tree
    assert set(paths_of(merged)) == {beam[:n] for beam in beams for n in range(1, depth + 1)}


@settings(deadline=None)
@given(seeds, st.sampled_from([0.5, 1.0]), st.integers(1, 12))
def test_best_first_takes_the_nodes_likeliest_to_be_reached(seed, weight, max_nodes):
    columns = random_columns(seed)
    proxy = TrigramProxy() if weight < 1 else None
    reach = {(): 0.0}
    for depth in range(1, len(columns) + 1):
        for path in itertools.product(*columns[:depth]):
            reach[path] = reach[path[:-1]] + confidence(columns, path, weight, proxy)
    del reach[()]
    ranked = sorted(reach, key=lambda path: -reach[path])
    draft = draft_of(columns, "best_first", proxy=proxy, max_nodes=max_nodes, weight=weight)
    assert sorted(paths_of(draft.tree)) == sorted(ranked[:max_nodes])


@settings(deadline=None)
@given(seeds, shapes, weights, st.integers(1, 12))
def test_every_draft_is_a_valid_tree_within_its_budget(seed, shape, weight, max_nodes):
    columns, proxy = random_columns(seed, max_columns=8), TrigramProxy()
    draft = draft_of(columns, shape, proxy=proxy, max_nodes=max_nodes, weight=weight)
    validate(draft.tree)
    assert 1 <= draft.tree.num_nodes <= max_nodes
    for path, found in zip(paths_of(draft.tree), draft.confidences, strict=True):
        assert set(path) <= {token for column in columns for token in column}
        assert found == pytest.approx(confidence(columns, path, weight, proxy), abs=1e-5)
        assert found <= 0
    depth = len(best_path(draft.tree))
    assert len(draft.drafter_choices) == len(draft.proxy_choices) == depth


@settings(deadline=None)
@given(seeds, shapes, st.integers(1, 8))
def test_the_first_nodes_are_the_draft_of_a_smaller_budget(seed, shape, num_nodes):
    columns, proxy = random_columns(seed, max_columns=6), TrigramProxy()
    whole = draft_of(columns, shape, proxy=proxy, max_nodes=32)
    num_nodes = min(num_nodes, whole.tree.num_nodes)
    smaller = draft_of(columns, shape, proxy=proxy, max_nodes=num_nodes)
    assert prune_draft(whole, range(num_nodes)) == smaller


def test_the_drafter_alone_decides_without_a_proxy_or_with_all_the_weight():
    columns = random_columns(5, max_columns=6)
    argmax = chain([max(column, key=column.get) for column in columns])
    for proxy, weight in ((None, 0.5), (ForbiddenProxy(), 1.0)):
        draft = draft_of(columns, proxy=proxy, weight=weight)
        assert draft.tree == argmax and draft.proxy_choices == ()
        assert draft.drafter_choices == argmax.token_ids
        draft_of(columns, "best_first", proxy=proxy, weight=weight)


@pytest.mark.parametrize("shape", ["path", "beams", "best_first"])
def test_columns_of_single_candidates_need_no_proxy(shape):
    columns = [{3: 0.9}, {4: 0.8}, {5: 0.95}]
    draft = draft_of(columns, shape, proxy=ForbiddenProxy())
    assert draft.tree == chain([3, 4, 5])
    assert draft.confidences == pytest.approx(np.log([0.9, 0.8, 0.95]), abs=1e-6)
    assert draft.proxy_choices == (3, 4, 5)


def test_the_work_of_the_beam_is_bounded_by_width_candidates_and_columns():
    columns, proxy = [dict.fromkeys(range(5), 0.15)] * 10, TrigramProxy()
    draft_of(columns, proxy=proxy, beam_width=3)
    assert proxy.num_scores == 5 + 9 * 3 * 5


def test_an_early_eos_does_not_win_by_having_fewer_terms():
    """Eq. 8 is a plain sum: the path "EOS" scores -10, twenty good tokens score -30."""
    proxy = TrigramProxy()
    columns = [{i: 0.5, i + 20: 0.2, EOS: 0.01} for i in range(12)]
    for shape in ("path", "beams", "best_first"):
        draft = draft_of(columns, shape, proxy=proxy, max_nodes=64)
        assert EOS not in draft.tree.token_ids
    assert draft_of(columns, proxy=proxy).tree.num_nodes == 12
    assert draft_of(columns).tree == chain(range(12))


@pytest.mark.parametrize("shape", ["path", "beams", "best_first"])
def test_the_stop_column_ends_every_path_with_eos(shape):
    columns = [{1: 0.5, 2: 0.3}, {3: 0.6, 4: 0.2}, {EOS: 0.7}, {5: 0.9}]
    tree = draft_of(columns, shape, proxy=TrigramProxy()).tree
    parents = set(tree.parents)
    for node in range(tree.num_nodes):
        is_last = depths(tree)[node] == 3
        assert is_last == (node not in parents) == (tree.token_ids[node] == EOS)


def test_choices_are_the_best_candidates_of_each_side():
    class Counting(TrigramProxy):
        def logprob(self, state, token):
            return math.log(0.9 if token == state[-1] + 1 else 0.01)

    columns = [{7: 0.5, 40: 0.3}, {41: 0.9}, {50: 0.5, 42: 0.4}]  # the prefix ends in 39
    for shape in ("path", "beams", "best_first"):
        draft = draft_of(columns, shape, proxy=Counting())
        assert [draft.tree.token_ids[node] for node in best_path(draft.tree)] == [40, 41, 42]
        assert draft.drafter_choices == (7, 41, 50)
        assert draft.proxy_choices == (40, 41, 42)


def test_a_probability_rounded_above_one_stays_behind_its_parent():
    columns = [{1: 0.5, 2: 0.4}, {3: 1.00002}, {4: 1.00001}]
    draft = draft_of(columns, proxy=TrigramProxy())
    assert draft.tree.parents == (-1, 0, 1) and draft.confidences[1:] == (0.0, 0.0)


def test_an_empty_lattice_gives_an_empty_draft():
    for shape in ("path", "beams", "best_first"):
        draft = draft_of([], shape, proxy=TrigramProxy())
        assert draft.tree.num_nodes == 0 and draft.drafter_choices == ()


async def test_a_batch_gives_one_draft_per_lattice_in_order():
    search = PathSearch(TrigramProxy())
    requests = [request("path"), request("best_first", max_nodes=4), request(weight=1.0)]
    lattices = [lattice_of(*random_columns(seed)) for seed in (1, 2, 3)]
    drafts = await search.search(requests, lattices)
    assert len({draft.search_seconds for draft in drafts}) == 1
    for draft, one, lattice in zip(drafts, requests, lattices, strict=True):
        assert draft.search_seconds > 0
        alone = search.search_one(one, lattice)
        assert draft.tree == alone.tree and draft.confidences == alone.confidences
        assert draft.num_tokens_before_eos == lattice.num_tokens_before_eos


@pytest.mark.parametrize("shape", ["path", "beams", "best_first"])
def test_the_root_and_every_node_have_alternatives_if_requested(shape):
    lattice = lattice_of({1: 0.6, 2: 0.3}, {3: 0.9}, {4: 0.5, 5: 0.4})
    lattice.token_ids[1, 1], lattice.logprobs[1, 1] = 7, math.log(0.05)  # a runner-up
    search = PathSearch(None)
    asked = replace(request(shape, max_nodes=4), num_alternatives=2)
    draft = search.search_one(asked, lattice)
    assert search.search_one(request(shape, max_nodes=4), lattice).alternatives == ()
    levels = [[1, 2], [3, 7], [4, 5], []]
    expected = [levels[0], *(levels[depth] for depth in depths(draft.tree))]
    assert [[token for token, _ in entry] for entry in draft.alternatives] == expected
    assert dict(draft.alternatives[1])[7] == pytest.approx(math.log(0.05))
    assert draft.tree == search.search_one(request(shape, max_nodes=4), lattice).tree


def test_the_proxy_affects_the_order_of_the_alternatives():
    lattice = lattice_of({1: 0.4, 2: 0.35, 3: 0.2})
    asked = replace(request("best_first", max_nodes=2, weight=0.3), num_alternatives=8)
    draft = PathSearch(TrigramProxy()).search_one(asked, lattice)
    told = dict(draft.alternatives[0])
    for token, confidence in zip(draft.tree.token_ids, draft.confidences, strict=True):
        assert told[token] == confidence
    assert list(told) == sorted(told, key=told.__getitem__, reverse=True)
