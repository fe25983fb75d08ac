"""Renewal of approximate prefixes: which rows are computed again, and when.

With full attention, the state of a row depends on all later tokens, so cached rows are of earlier
times. After some tokens a draft computes a window at the end of its prefix again. The rows before
it are renewed while the drafter is idle, in pieces, the oldest first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.models.attention.segment import Segment
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner

logger = logging.getLogger(__name__)

MIN_PIECE_ROWS, MAX_PIECE_ROWS = 16, 512
# A draft call that arrives waits for one layer of a piece.
MAX_LAYER_SECONDS = 0.001


class Piece(NamedTuple):
    """Successive cached rows of a request, to be computed again."""

    request_id: str
    start: int
    end: int


class RowAges:
    """The number of prefix tokens at which each cached row was computed, by request.

    A row is stale once the prefix has grown by refresh_every tokens since. `window`: the last rows
    of a prefix, which a draft computes again.
    """

    def __init__(self, refresh_every: int, window: int) -> None:
        self._refresh_every, self._window = refresh_every, window
        self._lengths: dict[str, NDArray[np.int32]] = {}

    def first_stale(self, request_id: str, num_cached: int, num_tokens: int) -> int:
        """Return the first row that a draft after num_tokens tokens computes, up to num_cached."""
        lengths = self._lengths.get(request_id, np.zeros(0, np.int32))[:num_cached]
        first = max(num_tokens - self._window, 0)
        recent = lengths[first:]
        is_stale = len(recent) and num_tokens - recent.min() >= self._refresh_every
        return first if is_stale else num_cached

    def set(self, request_id: str, start: int, end: int, num_tokens: int) -> None:
        """Record that rows are computed after num_tokens tokens; those from `end` on are unknown,
        unless the prefix has as many tokens."""
        lengths = self._lengths.get(request_id, np.zeros(0, np.int32))
        later = lengths[end:num_tokens]
        now = np.full(end - start, num_tokens, np.int32)
        self._lengths[request_id] = np.concatenate([lengths[:start], now, later])

    def num_rows(self, request_id: str) -> int:
        return len(self._lengths.get(request_id, ()))

    def release(self, request_id: str) -> None:
        self._lengths.pop(request_id, None)

    def oldest(self, max_rows: int) -> Piece | None:
        """Return the rows before a window that were computed the most tokens ago, if stale."""
        found, most = None, self._refresh_every - 1
        for request_id, lengths in self._lengths.items():
            ages = len(lengths) - lengths[: max(len(lengths) - self._window, 0)]
            if len(ages) and ages.max() > most:
                most, start = int(ages.max()), int(ages.argmax())
                fresh = np.flatnonzero(ages[start : start + max_rows] < self._refresh_every)
                count = int(fresh[0]) if len(fresh) else min(max_rows, len(ages) - start)
                found = Piece(request_id, start, start + count)
        return found


class IdleRenewal:
    """Computes stale rows before the windows again, a piece at a time.

    A piece stops after a layer if it must. Its size follows from the time that there usually is.
    """

    def __init__(self, runner: ModelRunner, ages: RowAges) -> None:
        self._runner, self._ages = runner, ages
        self._max_rows = 2 * MIN_PIECE_ROWS

    def renew(self, must_stop: Callable[[], bool], max_rows: int | None = None) -> bool:
        """Renew the oldest piece, unless stopped. Return whether there may be another.

        max_rows: rows of the piece; None: as many as there usually is time for.
        """
        piece = self._ages.oldest(max_rows or self._max_rows)
        if piece is None:
            return False
        table = self._runner.cache.find(piece.request_id)
        if table is None or table.length != self._ages.num_rows(piece.request_id):
            self._ages.release(piece.request_id)  # its pages have been taken
            return True
        try:
            return self._compute(table, piece, must_stop)
        except Exception as error:  # torch may raise anything
            logger.warning("rows of %s could not be renewed: %s", piece.request_id, error)
            self._runner.cache.clear(piece.request_id)  # rows may contain NaNs
            self._ages.release(piece.request_id)
            return False

    @torch.inference_mode()
    def _compute(self, table: PageTable, piece: Piece, must_stop: Callable[[], bool]) -> bool:
        segment = Segment(
            table,
            piece.start,
            table.token_ids[piece.start : piece.end],
            np.arange(piece.start, piece.end),
            "full",
            np.arange(0),
            num_after=table.length - piece.end,
        )
        started = time.monotonic()
        num_layers = self._runner.renew(segment, must_stop)
        if num_layers is None:
            self._max_rows = max(self._max_rows // 2, MIN_PIECE_ROWS)
            return False
        self._ages.set(piece.request_id, piece.start, piece.end, table.length)
        self._resize(segment.num_rows, (time.monotonic() - started) / num_layers)
        return True

    def _resize(self, num_rows: int, layer_seconds: float) -> None:
        """Choose the size of the next piece, given the seconds of a layer for num_rows rows."""
        if layer_seconds > MAX_LAYER_SECONDS:
            self._max_rows = max(self._max_rows // 2, MIN_PIECE_ROWS)
        elif 2 * layer_seconds < MAX_LAYER_SECONDS and num_rows >= self._max_rows:
            self._max_rows = min(self._max_rows * 2, MAX_PIECE_ROWS)
