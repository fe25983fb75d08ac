"""The runner: prefill in pieces, padded rows, and forwards of one fixed shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.algorithm.draft_tree import ancestor_mask
from diffuspec.core.devices import CPU_LEVELS
from diffuspec.models.attention.segment import Segment
from diffuspec.models.kernels import levels
from diffuspec.models.loading.load import load_model
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner, padded_size
from tests.support.models import (
    FAMILIES,
    MAX_POSITIONS,
    SHAPE,
    assert_same_logits,
    make_model,
    random_tokens,
    reference,
    segment,
)


def test_extending_feeds_a_long_prefix_in_pieces(runner: ModelRunner, family: str) -> None:
    prefix = random_tokens(MAX_POSITIONS // 2).astype(np.int32)
    runner.cache.begin_step()
    before, table = runner.num_forwards, runner.cache.acquire("a", prefix)
    start = runner.extend(table, prefix, table.length, 20)
    assert start == 120
    assert runner.num_forwards == before + 6
    logits = runner.forward([segment(table, start, prefix[start:].astype(np.int64))])
    assert_same_logits(logits, reference(make_model(family), prefix)[start:])


def test_a_cpu_model_sees_few_numbers_of_rows(
    family_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN keeps compiled kernels for every number of rows, megabytes for each."""
    monkeypatch.setattr("diffuspec.models.kernels.operations.is_available", False)
    runner = load_model(family_path("qwen2"), device="cpu", max_sequences=1).runner
    fed, wanted = set(), set()

    def record(
        model: Any, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, *_: object
    ) -> torch.Tensor:
        assert len(token_ids) == len(positions)
        fed.add(len(token_ids))
        wanted.add(len(rows))
        return torch.zeros(len(rows), 4)

    monkeypatch.setattr("diffuspec.models.runner.run_packed", record)
    for num_rows in range(1, MAX_POSITIONS + 1):
        assert len(runner.forward([segment(0, 0, random_tokens(num_rows))])) == num_rows
    assert fed == wanted and len(fed) == 16 + 4 * 8


def test_padded_sizes_are_at_most_an_eighth_too_large() -> None:
    sizes = [padded_size(count) for count in range(1, 3000)]
    assert all(count <= size <= 1.125 * count for count, size in enumerate(sizes, 1))
    assert sizes[:16] == list(range(1, 17)) and sizes[16:20] == [18, 18, 20, 20]


def test_forwards_are_counted_and_timed(runner: ModelRunner) -> None:
    number, seconds = runner.num_forwards, runner.forward_seconds
    runner.forward([segment(0, 0, random_tokens(5))])
    assert runner.num_forwards == number + 1
    assert runner.forward_seconds > seconds


EXACT_FAMILIES = sorted(FAMILIES.keys() - {"gpt-oss"})
PADDED_FAMILIES = {"gemma2", "gpt2"}  # their layers need one fixed shape


@pytest.fixture(params=["float32", "float32, plain", "bfloat16", "bfloat16, plain", "float16"])
def exact_runner(
    request: pytest.FixtureRequest,
    family: str,
    family_path: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> ModelRunner:
    monkeypatch.setattr("diffuspec.models.runner.EXACT_BLOCK", 64)
    dtype, _, is_plain = request.param.partition(", ")
    own = levels.level()
    if is_plain:
        levels.use_level(CPU_LEVELS[0])
        request.addfinalizer(lambda: levels.use_level(own))
    loaded = load_model(
        family_path(family),
        device="cpu",
        dtype=dtype,
        max_sequences=2,
        num_scratch_rows=8,
        is_exact=True,
    )
    return loaded.runner


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("family", EXACT_FAMILIES, indirect=True)
def test_exact_rows_do_not_depend_on_what_else_is_in_a_step(
    exact_runner: ModelRunner, family: str
) -> None:
    first, second = new_table(exact_runner, "first"), new_table(exact_runner, "second")
    length = 68  # more than a page
    token_ids = random_tokens(length)
    expected = feed_by(exact_runner, first, token_ids, [1] * length)
    if exact_runner.cache.store.dtype == torch.float32:
        assert_same_logits(expected, reference(make_model(family), token_ids))
    steps = np.random.default_rng(7).integers(1, 25, length).tolist()
    assert torch.equal(feed_by(exact_runner, second, token_ids, steps), expected)
    assert torch.equal(feed_by(exact_runner, second, token_ids, [length]), expected)


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(EXACT_FAMILIES) - PADDED_FAMILIES), indirect=True)
def test_exact_rows_of_a_tree_are_those_of_its_paths(
    exact_runner: ModelRunner, family: str
) -> None:
    if not exact_runner.takes_trees:
        pytest.skip("this machine's kernels need one fixed shape")
    first, second = new_table(exact_runner, "first"), new_table(exact_runner, "second")
    prefix, parents = random_tokens(70), [-1, 0, 1, 0, 3, -1, 5, 1, 4, 4]
    nodes = random_tokens(len(parents))
    visible = ancestor_mask([-1, *(1 + parent for parent in parents)])
    depths = visible.sum(axis=1)
    positions = len(prefix) - 2 + depths
    feed_by(exact_runner, first, prefix[:-1], [len(prefix)])
    rows = Segment(
        first, 69, np.concatenate([prefix[-1:], nodes]), positions, visible, range(len(depths))
    )
    logits = exact_runner.forward([rows])
    for leaf in set(range(len(parents))) - set(parents):
        path = np.flatnonzero(visible[1 + leaf])
        feed_by(exact_runner, second, prefix[:-1], [30, 39])
        for place, row in enumerate(path):
            alone = exact_runner.forward([segment(second, 69 + place, rows.token_ids[[row]])])
            assert torch.equal(logits[row], alone[0])
    exact_runner.cache.commit(first, rows.token_ids[[0, 1, 4]].tolist(), 1, [1, 4])
    feed_by(exact_runner, second, np.concatenate([prefix, nodes[[0, 3]]]), [72])
    rows_of = exact_runner.cache.store.rows
    assert torch.equal(rows_of(first.pages, 72), rows_of(second.pages, 72))


@pytest.mark.parametrize("family", sorted(PADDED_FAMILIES), indirect=True)
def test_one_fixed_shape_is_used_where_layers_do_not_keep_rows_apart(
    exact_runner: ModelRunner, family: str
) -> None:
    assert exact_runner.is_exact and not exact_runner.takes_trees


def new_table(runner: ModelRunner, name: str) -> PageTable:
    return runner.cache.acquire(name, np.zeros(0, np.int32))


def feed_by(
    runner: ModelRunner, table: PageTable, token_ids: NDArray[Any], steps: Sequence[int]
) -> torch.Tensor:
    """Return the logits of every token, feeding steps[i] tokens in forward i."""
    first, logits = 0, []
    runner.cache.truncate(table, 0)
    for step in steps:
        new = token_ids[first : first + step]
        if len(new):
            logits.append(runner.forward([segment(table, first, new)]))
            runner.cache.commit(table, new, len(new))
            first += len(new)
    return torch.cat(logits)


def test_exact_rows_do_not_depend_on_how_threads_divide_the_work(tmp_path: Path) -> None:
    """Elementwise kernels take the last elements of a thread's share in another way."""
    torch.manual_seed(0)
    wide = Qwen2Config(**{**SHAPE, "intermediate_size": 2011})
    Qwen2ForCausalLM(wide).save_pretrained(tmp_path)
    runner = load_model(tmp_path, device="cpu", num_scratch_rows=64, is_exact=True).runner
    token_ids, before = np.arange(65) + 7, torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        table = new_table(runner, "one")
        at_once = feed_by(runner, table, token_ids, [65])
        assert torch.equal(feed_by(runner, table, token_ids, [20, 20, 25]), at_once)
    finally:
        torch.set_num_threads(before)
