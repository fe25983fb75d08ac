"""Packed batches: their rows, what these see, and a loss that is that of padded batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention

from diffuspec.pairs.factory.blocks import (
    hidden_states,
    masked_tokens,
    place_aligned_blocks,
    place_blocks,
)
from diffuspec.pairs.factory.examples import Batch, Example, ExampleFiles
from diffuspec.pairs.factory.loss import Head, LossConfig
from diffuspec.pairs.factory.packed_loss import PackedExamples, PackedLoss, packed_shape
from diffuspec.pairs.factory.packing import (
    Packed,
    PackedShape,
    Texts,
    examples_of_batch,
    pack,
)
from diffuspec.pairs.factory.sight import SightMask, attend, dense_mask, narrowed
from diffuspec.pairs.factory.start import keep_layers, load_target

CPU = torch.device("cpu")
MASK = 7


def make_shape(num_clean: int, num_masked: int = 0, **more: Any) -> PackedShape:
    settings = {"min_block": 3, "max_block": 5, "clean_weight": 1.0, "position_decay": 0.9}
    return PackedShape(num_clean, num_masked, **(settings | {"revealed_share": 0.0} | more))


def make_examples() -> list[Example]:
    """Return two prompts of 3 and 2 tokens with answers of 5 and 6."""
    marks = [[False] * 3 + [True] * 5, [False] * 2 + [True] * 6]
    return [Example(list(range(10 * n, 10 * n + 8)), marks[n - 1]) for n in (1, 2)]


@pytest.fixture
def packed():
    texts = Texts.of(make_examples())
    return pack(texts, [1, 0], make_shape(12, 24), np.random.default_rng(0)), texts


def test_a_batch_holds_whole_examples_and_cuts_the_last(packed):
    batch, texts = packed
    clean = texts.token_ids[batch.places[:12].numpy()]
    assert clean.tolist() == [*range(20, 28), *range(10, 14)]
    assert batch.positions[:12].tolist() == [*range(8), *range(4)]
    assert batch.sight[:, :12].T.tolist()[7:9] == [[0, 8, 0, 0], [8, 9, 0, 0]]


def test_masked_rows_see_the_text_before_their_draft_and_the_draft(packed):
    batch, _ = packed
    visible = dense_mask(batch.sight)
    for row in range(12, 36):
        first = int(batch.sight[2, row])
        start = int(batch.sight[1, row])
        example = 0 if start <= 8 else 8
        assert batch.places[row] == -1
        assert batch.positions[row] == start - example + row - first
        expected = {*range(example, start), *range(first, int(batch.sight[3, row]))}
        assert set(visible[row].nonzero()[:, 0].tolist()) == expected


def test_labels_are_the_tokens_after_a_row_inside_its_answer(packed):
    batch, texts = packed
    for row, label in zip(batch.learning.tolist(), batch.labels.tolist(), strict=True):
        if label >= 0:
            start = int(batch.sight[0, row])
            place = int(batch.places[start]) + int(batch.positions[row])
            assert label == place + 1 and texts.answer_ends[label] > 0
    masked = batch.labels[-24:]
    assert torch.isclose(batch.weights[-24:].sum(), torch.tensor(1.0))
    assert (batch.weights[-24:][masked < 0] == 0).all()


def test_some_tokens_of_a_share_of_the_drafts_are_shown():
    texts = Texts.of(make_examples())
    shape = make_shape(16, 48, revealed_share=1.0)
    batch = pack(texts, [0, 1], shape, np.random.default_rng(1))
    shown = batch.places[16:] >= 0
    assert shown.any() and not shown.all()
    rows = torch.arange(16, 64)[shown]
    firsts = batch.places[batch.sight[0, rows].long()]
    assert (batch.places[rows] == firsts + batch.positions[rows]).all()
    labels = batch.labels[-48:]
    before = rows[batch.sight[2, rows] < rows] - 1 - 16  # rows that would predict them
    assert (labels[before] == -1).all()


def test_batches_use_every_example_before_any_is_used_again():
    texts = Texts.of([Example([i] * 4, [False] + [True] * 3) for i in range(8)])
    taken = []
    for number in range(4):
        chosen = iter(examples_of_batch(texts, 0, number, 8))
        taken += [next(chosen), next(chosen)]
    assert sorted(taken) == list(range(8))


@pytest.mark.parametrize("window", [None, 4])
def test_tiles_of_the_block_mask_cover_what_rows_see(window):
    texts = Texts.of([Example(list(range(60)), [False] * 20 + [True] * 40)] * 5)
    batch = pack(texts, range(5), make_shape(256, 256), np.random.default_rng(0))
    sight = batch.sight if window is None else narrowed(batch.sight, batch.positions, window)
    visible = dense_mask(sight)
    mask = SightMask(512, CPU).set(sight)
    rows = torch.arange(512)
    seen = mask.mask_mod(torch.tensor(0), torch.tensor(0), rows[:, None], rows[None])
    assert torch.equal(seen, visible)
    tiles = visible.view(4, 128, 4, 128).any(3).any(1)
    found = mask.to_dense()[0, 0].bool()
    assert (found | ~tiles).all()  # tiles may be listed without need, never be missing
    assert not found.all()
    if window is not None:
        near = batch.positions[:, None] - batch.positions < window
        assert torch.equal(visible, dense_mask(batch.sight) & near)


def test_flex_attention_gives_what_a_dense_mask_does(monkeypatch):
    # as written, instead of compiled
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    texts = Texts.of([Example(list(range(30)), [False] * 10 + [True] * 20)] * 5)
    batch = pack(texts, range(5), make_shape(128, 128), np.random.default_rng(0))
    query, key, value = torch.randn(3, 1, 2, 256, 8, generator=torch.Generator().manual_seed(0))
    mask = SightMask(256, CPU).set(batch.sight)
    with torch.no_grad():
        found, _ = attend(None, query, key[:, :1], value[:, :1], mask)
        expected = torch.nn.functional.scaled_dot_product_attention(
            query, key[:, :1], value[:, :1], attn_mask=dense_mask(batch.sight), enable_gqa=True
        )
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-5)


@pytest.fixture(scope="module")
def model(target):
    return keep_layers(load_target(target), (0,))


@pytest.mark.parametrize("block_size", [None, 4])
def test_states_labels_and_weights_are_those_of_padded_batches(model, answers, block_size):
    examples, config = read_examples(answers), make_config(block_size)
    loss, packed = make_loss(model, examples, config)
    found = loss.states(packed)
    labels = dict(zip(packed.learning.tolist(), packed.labels.tolist(), strict=True))
    for first in packed.sight[2, 128:].unique().tolist():  # drafts
        rows = slice(first, first + int((packed.sight[2] == first).sum()))
        text, seen = packed.sight[:2, first].tolist()
        places = packed.places[text : text + int((packed.sight[0, :128] == text).sum())]
        token_ids = loss.examples.token_ids[places][None].long()
        is_answer = torch.from_numpy(loss.examples.texts.answer_ends[places] > 0)[None]
        batch = Batch(token_ids, is_answer, torch.ones_like(is_answer))
        num_known = int((packed.places[rows] >= 0).sum())
        start, length = torch.tensor([[seen - text + num_known]]), rows.stop - first
        if block_size is None:
            blocks = place_blocks(batch, start, length)
        elif length % block_size:  # the last one is cut
            continue
        else:
            blocks = place_aligned_blocks(batch, start, length // block_size, block_size)
        states = hidden_states(model, token_ids, blocks, masked_tokens(batch, blocks, MASK))[0]
        assert torch.allclose(found[rows], states[len(places) :], atol=1e-4)
        assert torch.allclose(found[text : text + len(places)], states[: len(places)], atol=1e-4)
        expected = [labels[row] for row in range(first, rows.stop)]
        own = [int(loss.examples.token_ids[label]) if label >= 0 else -1 for label in expected]
        assert own == blocks.labels[0].tolist()
        weights = packed.weights[-256:][first - 128 : rows.stop - 128]
        decayed = 0.9 ** blocks.offsets[0] * (blocks.labels[0] >= 0)
        assert torch.allclose(weights * decayed.max(), decayed * weights.max(), atol=1e-6)


def test_layers_of_transformers_take_the_block_mask(model, answers, monkeypatch):
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    loss, packed = make_loss(model, read_examples(answers), make_config(None))
    with torch.no_grad():  # there is no gradient of FlexAttention on a CPU
        dense = loss.states(packed)
        loss.is_flex = True
        assert torch.allclose(loss.states(packed), dense, atol=1e-4)


def test_the_loss_is_the_cross_entropy_of_answers_and_of_the_targets_probabilities(model, answers):
    loss, packed = make_loss(model, read_examples(answers), make_config(None))
    head = Head(model)
    logprobs = head.logprobs(loss.states(packed)[packed.learning])
    labels = packed.labels.clamp(min=0)
    hard = head.cross_entropies(logprobs, loss.examples.token_ids[labels].long())
    top_ids, top_probs = loss.examples.likely(labels)
    soft = -(logprobs.gather(1, top_ids) * top_probs).sum(-1) / top_probs.sum(-1)
    expected = ((hard + soft) / 2 * packed.weights).sum()
    assert torch.allclose(loss(packed), expected, atol=1e-5)


def read_examples(answers: Path) -> list[Example]:
    files = ExampleFiles([answers], 100)
    files.read_new()
    return files.training


def make_config(block_size: int | None) -> LossConfig:
    return LossConfig(
        MASK,
        "block_aligned" if block_size else "block_causal",
        block_size or 1,
        min_block=5,
        max_block=8,
        clean_weight=1.0,
        position_decay=0.9,
        revealed_share=0.0,
    )


def make_loss(model: Any, examples: list[Example], config: LossConfig) -> tuple[PackedLoss, Packed]:
    """Return the loss, and a batch of 128 clean rows."""
    packed = PackedExamples(packed_shape(config, 128), 0, CPU)
    batch = next(iter(packed.batches(examples, 0)))
    return PackedLoss(model, packed, config, Head(model)), batch
