"""Rows of approximate prefixes are computed again, in turn, and see the rows after them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.models import renewal
from diffuspec.models.attention.segment import Segment
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.loading.load import load_model
from diffuspec.models.renewal import Piece, RowAges
from tests.support.draft_requests import draft_request
from tests.support.models import (
    MAX_POSITIONS,
    NUM_KNOWN_IDS,
    assert_same_logits,
    make_model,
    random_tokens,
    segment,
)

PREFIX = np.random.default_rng(3).integers(3, NUM_KNOWN_IDS, 60).tolist()
WINDOW = 8


@pytest.fixture
async def drafter(
    save_drafter: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DiffusionDrafter]:
    """A drafter with full attention that renews four rows at a time while it is idle."""
    monkeypatch.setattr(renewal, "MIN_PIECE_ROWS", 2)
    monkeypatch.setattr(renewal, "MAX_PIECE_ROWS", 4)
    monkeypatch.setattr(renewal, "MAX_LAYER_SECONDS", 1e9)
    config = DiffuSpecConfig(
        path=save_drafter("dream"),
        device="cpu",
        refresh_every=4,
        refresh_tokens=WINDOW,
        renew_when_idle=True,
    )
    target = TargetInfo(NUM_KNOWN_IDS, MAX_POSITIONS, max_sequences=1, eos_token_ids=())
    drafter = DiffusionDrafter.load(config, target)
    yield drafter
    drafter.close()


class Renewals:
    """The segments that a drafter has renewed."""

    def __init__(self, drafter: DiffusionDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: list[Segment] = []
        self.are_done = threading.Event()
        self._renew = drafter.runner.renew
        monkeypatch.setattr(drafter.runner, "renew", self._spy)

    def _spy(self, segment: Segment, must_stop: Callable[[], bool]) -> int | None:
        found = self._renew(segment, must_stop)
        self.segments.append(segment)
        if segment.end == segment.table.length - WINDOW:
            self.are_done.set()
        return found

    @property
    def rows(self) -> list[int]:
        return [row for one in self.segments for row in range(one.start, one.end)]


async def happens(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 60)


async def draft(drafter: DiffusionDrafter, length: int, name: str = "a") -> None:
    await drafter.lattices([draft_request(PREFIX[:length], 5, 32, name, "path")])


async def test_an_idle_drafter_renews_the_rows_before_the_window_in_turn(drafter, monkeypatch):
    done = Renewals(drafter, monkeypatch)
    await draft(drafter, 30)
    await draft(drafter, 33)  # no row is stale
    assert not done.segments
    await draft(drafter, 34)
    await happens(done.are_done)
    assert done.rows == list(range(34 - WINDOW))
    assert {one.seen_end for one in done.segments} == {34}
    assert max(one.num_rows for one in done.segments) == 4


async def test_a_lattice_tells_how_many_cached_rows_were_computed_again(drafter):
    async def refreshed(length: int) -> int:
        [found] = await drafter.lattices([draft_request(PREFIX[:length], 5, 32, "a", "path")])
        return found.num_refreshed

    lengths = (30, 33, 34, 36, 38)
    assert [await refreshed(length) for length in lengths] == [0, 0, 33 - 26, 0, 36 - 30]


async def test_a_draft_that_arrives_waits_for_one_layer_of_a_piece(drafter, monkeypatch):
    has_begun, asked, forward = threading.Event(), list[bool](), drafter.runner.renew

    def renew(segment: Segment, must_stop: Callable[[], bool]) -> int | None:
        def ask() -> bool:
            has_begun.set()
            while not must_stop():
                pass
            asked.append(True)
            return True

        return forward(segment, ask)

    monkeypatch.setattr(drafter.runner, "renew", renew)
    await draft(drafter, 30)
    await draft(drafter, 34)
    await happens(has_begun)
    await draft(drafter, 36)
    assert asked[0] and drafter.runner.model.config.num_hidden_layers > 1 == len(asked)


async def test_rows_of_a_request_that_lost_its_pages_are_not_renewed(drafter, monkeypatch):
    done = Renewals(drafter, monkeypatch)
    await draft(drafter, 30)
    drafter.runner.cache.release("a")
    await draft(drafter, 40, "b")
    await draft(drafter, 44, "b")
    await happens(done.are_done)
    assert {one.table.request_id for one in done.segments} == {"b"}


async def test_a_failed_renewal_costs_the_cached_rows_only(drafter, monkeypatch, caplog):
    has_failed, warn = threading.Event(), renewal.logger.warning

    def fail(*_: Any) -> int:
        raise RuntimeError("no memory")

    def note(*message: Any) -> None:
        warn(*message)
        has_failed.set()

    monkeypatch.setattr(drafter.runner, "renew", fail)
    monkeypatch.setattr(renewal.logger, "warning", note)
    await draft(drafter, 30)
    await draft(drafter, 34)
    await happens(has_failed)
    await draft(drafter, 36)
    assert "rows of a could not be renewed: no memory" in caplog.text


@torch.inference_mode()
def test_rows_in_the_middle_see_all_cached_rows(family_path):
    """By the reference model, whose cache is all rows but the renewed ones."""
    runner = load_model(family_path("qwen2"), device="cpu", max_sequences=1).runner
    tokens, start, end = random_tokens(30).astype(np.int32), 6, 15
    model = make_model("qwen2")
    table = runner.cache.acquire("a", tokens[:0])
    runner.forward([segment(table, 0, tokens[:20], "full")])
    runner.forward([segment(table, 20, tokens[20:], "full")])
    runner.cache.commit(table, tokens, 30)
    middle = Segment(
        table,
        start,
        tokens[start:end],
        np.arange(start, end),
        "full",
        np.arange(0),
        num_after=30 - end,
    )
    assert runner.renew(middle, lambda: True) is None  # the first layer's rows are the same again
    assert runner.renew(middle, lambda: False) == model.config.num_hidden_layers
    found = runner.forward([segment(table, 30, tokens[:4], "full")])

    places = torch.arange(30)
    cache = model(
        torch.tensor(tokens[None, :20]), attention_mask=torch.zeros(1, 1, 20, 20), use_cache=True
    ).past_key_values
    model(
        torch.tensor(tokens[None, 20:]),
        attention_mask=torch.zeros(1, 1, 10, 30),
        past_key_values=cache,
    )
    kept = (places < start) | (places >= end)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    model(
        torch.tensor(tokens[None, start:end]),
        attention_mask=torch.zeros(1, 1, end - start, 30),
        position_ids=torch.arange(start, end)[None],
        past_key_values=cache,
    )
    expected = model(
        torch.tensor(tokens[None, :4]),
        attention_mask=torch.zeros(1, 1, 4, 34),
        position_ids=torch.arange(30, 34)[None],
        past_key_values=cache,
    ).logits[0]
    assert_same_logits(found, expected)


def test_pieces_cover_all_rows_before_the_window_oldest_first():
    ages = RowAges(refresh_every=10, window=20)
    ages.set("a", 0, 100, 100)
    assert ages.oldest(32) is None
    ages.set("a", 100, 110, 110)
    found = []
    while (piece := ages.oldest(32)) is not None:
        found.append(piece)
        ages.set("a", piece.start, piece.end, 110)
    assert found == [Piece("a", 0, 32), Piece("a", 32, 64), Piece("a", 64, 90)]
    ages.set("a", 32, 64, 110)
    ages.set("a", 110, 121, 121)
    assert ages.oldest(200) == Piece("a", 90, 101)


def test_the_request_with_the_oldest_rows_is_next():
    ages = RowAges(refresh_every=10, window=20)
    ages.set("a", 0, 100, 100)
    ages.set("b", 0, 50, 50)
    ages.set("a", 100, 112, 112)
    ages.set("b", 50, 65, 65)
    assert ages.oldest(8) == Piece("b", 0, 8)
    ages.release("b")
    assert ages.oldest(8) == Piece("a", 0, 8)


def test_a_draft_computes_the_window_again_once_a_row_of_it_is_stale():
    ages = RowAges(refresh_every=10, window=20)
    ages.set("a", 0, 100, 100)
    assert ages.first_stale("a", 100, 109) == 100
    assert ages.first_stale("a", 100, 110) == 90
    ages.set("a", 90, 110, 110)
    assert ages.first_stale("a", 110, 119) == 110
    assert ages.first_stale("b", 0, 19) == 0
