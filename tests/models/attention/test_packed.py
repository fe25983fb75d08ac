"""Packed ragged forwards give what transformers gives each sequence alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.load import load_model
from diffuspec.models.runner import ModelRunner
from tests.support.models import (
    assert_same_logits,
    fixed_table,
    make_model,
    random_tokens,
    reference,
    segment,
)


@pytest.mark.no_cover
def test_ragged_batch_equals_separate_forwards(family: str, runner: ModelRunner) -> None:
    model = make_model(family)
    sequences = [random_tokens(length) for length in (40, 17, 9, 1)]
    starts = (25, 16, 0, 0)  # one has 15 new rows, one a single one, two are new
    for slot, (token_ids, start) in enumerate(zip(sequences, starts, strict=True)):
        if start:
            runner.forward([segment(slot, 0, token_ids[:start])])
    batch = [
        segment(slot, start, token_ids[start:])
        for slot, (token_ids, start) in enumerate(zip(sequences, starts, strict=True))
    ]
    logits = runner.forward(batch)
    expected = [
        reference(model, token_ids)[start:]
        for token_ids, start in zip(sequences, starts, strict=True)
    ]
    assert_same_logits(logits, torch.cat(expected))


@pytest.mark.no_cover
def test_one_token_at_a_time_equals_one_forward(family: str, runner: ModelRunner) -> None:
    token_ids = random_tokens(20)
    logits = [runner.forward([segment(1, i, token_ids[i : i + 1])]) for i in range(20)]
    assert_same_logits(torch.cat(logits), reference(make_model(family), token_ids))


def test_rows_written_before_a_rollback_leave_no_trace(family: str, runner: ModelRunner) -> None:
    token_ids, other = random_tokens(12), random_tokens(20)
    runner.forward([segment(0, 0, np.concatenate([token_ids[:8], other]))])
    logits = runner.forward([segment(0, 8, token_ids[8:])])
    assert_same_logits(logits, reference(make_model(family), token_ids)[8:])


def test_tree_rows_equal_forwards_of_their_paths(family: str, runner: ModelRunner) -> None:
    prefix = random_tokens(15)
    parents, depth = [-1, 0, 0, -1, 3, 1], [1, 2, 2, 1, 2, 3]
    nodes = random_tokens(len(parents))
    visible = np.tri(1 + len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        visible[1 + node, 1:] = visible[1 + parent, 1:]
        visible[1 + node, 1 + node] = True
    visible[0] = [True] + [False] * len(parents)
    runner.forward([segment(0, 0, prefix[:-1])])
    positions = 14 + np.array([0, *depth])
    rows = np.concatenate([prefix[-1:], nodes])
    logits = runner.forward(
        [Segment(fixed_table(0), 14, rows, positions, visible, range(len(rows)))]
    )
    model = make_model(family)
    for node in range(len(parents)):
        path: list[int] = []
        current = node
        while current >= 0:
            path.insert(0, int(nodes[current]))
            current = parents[current]
        assert_same_logits(logits[1 + node][None], reference(model, [*prefix, *path])[-1:])


def test_full_attention(family_path: Callable[[str], Path]) -> None:
    runner = load_model(family_path("qwen2"), device="cpu", max_sequences=1).runner
    token_ids = random_tokens(30)
    logits = runner.forward([segment(0, 0, token_ids, "full")])
    visible = torch.ones(30, 30, dtype=torch.bool)
    assert_same_logits(logits, reference(make_model("qwen2"), token_ids, visible))


@pytest.mark.parametrize("num_cached", [0, 20])
def test_windows_combine_with_any_other_mask(
    family_path: Callable[[str], Path], num_cached: int
) -> None:
    name, window = "qwen2 with windows", 7
    runner = load_model(family_path(name), device="cpu", max_sequences=1).runner
    token_ids, positions = random_tokens(30), np.arange(30)
    visible = np.tri(30, dtype=np.bool_)
    visible[20:, 20:] = True  # a block whose rows see each other
    near = positions[:, None] - positions < window
    if num_cached:
        runner.forward([segment(0, 0, token_ids[:num_cached])])
    new = token_ids[num_cached:]
    logits = runner.forward([segment(0, num_cached, new, visible[num_cached:, num_cached:])])
    assert torch.equal(runner.forward([segment(0, num_cached, new, 20 - num_cached)]), logits)
    masks = {
        "full_attention": torch.from_numpy(visible)[None, None],
        "sliding_attention": torch.from_numpy(visible & near)[None, None],
    }
    with torch.inference_mode():
        expected = make_model(name)(torch.tensor(token_ids)[None], attention_mask=masks).logits[0]
    assert_same_logits(logits, expected[num_cached:])


@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_windowed_layer_reads_no_further_back(
    family_path: Callable[[str], Path], num_rows: int
) -> None:
    runner = load_model(family_path("mistral"), device="cpu", max_sequences=1).runner
    token_ids = random_tokens(40)
    runner.forward([segment(0, 0, token_ids)])
    store, pages = runner.cache.store, fixed_table(0).pages
    unseen = torch.full_like(store.rows(pages, 40 - 7), torch.nan)
    store.write(pages, 0, list(unseen))  # would show even behind a mask: 0 * NaN is NaN
    new = random_tokens(num_rows)
    logits = runner.forward([segment(0, 40, new)])
    expected = reference(make_model("mistral"), np.concatenate([token_ids, new]))
    assert_same_logits(logits, expected[40:])


def test_later_segment_sees_what_an_earlier_one_wrote(runner: ModelRunner, family: str) -> None:
    token_ids = random_tokens(14)
    logits = runner.forward([segment(2, 0, token_ids[:9]), segment(2, 9, token_ids[9:])])
    assert_same_logits(logits, reference(make_model(family), token_ids))


def test_only_wanted_rows_give_logits_in_the_order_asked(runner: ModelRunner, family: str) -> None:
    token_ids = random_tokens(10)
    first = Segment(fixed_table(0), 0, token_ids, np.arange(10), "causal", [7, 2])
    second = Segment(fixed_table(1), 0, token_ids[:4], np.arange(4), "causal", [3])
    expected = reference(make_model(family), token_ids)[[7, 2, 3]]
    assert_same_logits(runner.forward([first, second]), expected)


def test_long_segments_go_in_chunks_of_rows(
    runner: ModelRunner, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuspec.models.attention.torch.MAX_SCORES", 4 * 50 * 7)
    token_ids = random_tokens(50)
    assert_same_logits(
        runner.forward([segment(0, 0, token_ids)]), reference(make_model(family), token_ids)
    )
