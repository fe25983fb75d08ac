"""A table of drafts on an engine's device: what to verify next, for each outcome of a step.

A thread fills it with the outcomes for which a server has drafts. The engine looks up its requests
by their latest tokens, in one gather on the device; the host does not wait for the result.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

MISS = -1
_BASE, _LENGTH, _PATH = 0, 1, 2  # columns: tokens before an outcome, length of its path, the path


class DraftTable:
    """Drafts by row of the engine and by the tokens that the row gains after a known prefix.

    An outcome is a base (the number of tokens that a row already has) and a path (the accepted
    drafted tokens and the target's own token). It applies if the row's length is that of base and
    path together and its last tokens are the path. So an outdated table has no draft rather than a
    wrong one, and a row that is reused for another request only matches drafts for its own tokens.
    """

    def __init__(
        self, num_rows: int, max_draft_tokens: int, device: torch.device, num_outcomes: int = 32
    ) -> None:
        """num_outcomes: number of outcomes kept for each row; the newest replaces the oldest."""
        self.device = device
        self.max_path = max_draft_tokens + 1
        self._max_draft_tokens = max_draft_tokens
        self._num_outcomes = num_outcomes
        shape = (num_rows, num_outcomes, _PATH + self.max_path + max_draft_tokens)
        self._cells = np.full(shape, MISS, np.int32)
        self._places = [0] * num_rows  # index at which each row's next outcome is stored
        self._lock = threading.Lock()
        self._device_cells = torch.full(shape, MISS, dtype=torch.int32, device=device)
        self._offsets = torch.arange(self.max_path, device=device)
        self._published: torch.Tensor | None = None

    # ---- filled by a thread

    def add(self, row: int, base: int, path: Sequence[int], draft: Sequence[int]) -> None:
        """Record what to verify after an outcome. An outcome that does not fit is dropped."""
        fits = 0 < len(path) <= self.max_path and 0 < len(draft) <= self._max_draft_tokens
        if not fits or min(*path, *draft, 0) < 0 or not 0 <= row < len(self._places):
            return
        with self._lock:
            place = self._places[row]
            self._places[row] = (place + 1) % self._num_outcomes
            cell = self._cells[row, place]
            cell[:] = MISS
            cell[_BASE], cell[_LENGTH] = base, len(path)
            cell[_PATH : _PATH + len(path)] = path
            start = _PATH + self.max_path
            cell[start : start + len(draft)] = draft

    def clear(self, row: int) -> None:
        """Drop the outcomes of a row."""
        with self._lock:
            self._cells[row] = MISS
            self._places[row] = 0

    def publish(self) -> None:
        """Make additions visible to later lookups."""
        with self._lock:
            copy = torch.from_numpy(self._cells.copy())
        self._published = copy.pin_memory() if self._device_cells.is_cuda else copy

    # ---- read by the engine

    def lookup(
        self, rows: torch.Tensor, lengths: torch.Tensor, token_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return the drafts of rows, [number, max_draft_tokens], MISS where there is none.

        rows: [number]. lengths: [number], number of tokens of each. token_ids: [all rows, max
        length]. All are on the table's device, for which the host does not wait.
        """
        published, self._published = self._published, None
        if published is not None:
            self._device_cells.copy_(published, non_blocking=True)
        cells = self._device_cells[rows]
        base, length = cells[..., _BASE], cells[..., _LENGTH]
        path = cells[..., _PATH : _PATH + self.max_path]
        positions = (base.unsqueeze(-1) + self._offsets).clamp(0, token_ids.shape[1] - 1)
        found = token_ids[rows.view(-1, 1, 1), positions]
        is_beyond = self._offsets >= length.unsqueeze(-1)
        is_it = ((found == path) | is_beyond).all(-1)
        is_it &= (length > 0) & (base + length == lengths.unsqueeze(-1))
        best = is_it.to(torch.int32).argmax(1)
        drafts = cells[torch.arange(len(rows), device=cells.device), best, _PATH + self.max_path :]
        return drafts.masked_fill(~is_it.any(1, keepdim=True), MISS).to(torch.int64)
