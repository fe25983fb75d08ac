"""A transformers model with its cache: packed rows in, logits of chosen rows out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.algorithm.transfers import to_device
from diffuspec.core.types import TokenIds
from diffuspec.models.attention import triton as triton_attention
from diffuspec.models.attention.cpu import transposes_keys
from diffuspec.models.attention.interface import run_packed
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.attention.segment import Segment
from diffuspec.models.checks.self_test import run_self_test
from diffuspec.models.device_clock import DeviceClock
from diffuspec.models.graphs import StepGraphs, step_size
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.models.interruptible import run_layers
from diffuspec.models.kernels.triton.table import MAX_STEP_ROWS
from diffuspec.models.layers.draft_head import logit_columns
from diffuspec.models.layers.linear import has_torch_products
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.pages.table import PageTable

logger = logging.getLogger(__name__)

EXACT_BLOCK = 256  # columns that attention processes at a time in fixed shapes


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The size and the rules of a runner's cache; see `KVCache`."""

    num_pages: int
    shares_prefixes: bool = True
    # no request loses pages to another, and those that windows hide are given back
    is_target: bool = False


class ModelRunner:
    """Runs a causal LM that was loaded with our attention.

    All calls must come from one thread, preferably in inference mode. forward_seconds and
    num_forwards count the model's forwards, prefill included.

    If linear layers on a CPU are torch's own, the rows of a forward are padded to one of a few
    sizes: oneDNN compiles kernels for each number of rows on first use, and never frees them.

    Exact runners compute logits, keys and values whose bits depend only on a row's token and the
    rows before it, as long as the number of threads stays the same. There are two ways. With
    is_exact, for models on a CPU whose layers allow it, every operation treats a row in the same
    way wherever it is. With fixed_rows, every forward has that many rows of one segment, padded,
    and starts at a multiple of that number; cached rows after that start are recomputed. A row then
    goes through the same kernels at the same place in every step, provided that kernels are
    deterministic and rows are computed independently (in a mixture of experts they are not).
    Segments must be causal, and the rows before them committed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        max_len: int,
        cache: CacheSettings,
        fixed_rows: int | None = None,
        is_exact: bool = False,
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        parameter = next(model.parameters())
        self.device = parameter.device
        shape = run_self_test(model, self.device)
        self.columns = logit_columns(model)
        self.vocab_size = self.columns.num_ids if self.columns else shape.num_columns
        self.num_heads = shape.num_heads  # query heads
        self._group = shape.num_heads // shape.cache.num_kv_heads
        self.has_plain_scoring = shape.has_plain_scoring
        self._fixed_rows = fixed_rows
        self._is_exact = is_exact
        self._padded_size: Callable[[int], int] = int  # a number of rows -> the padded number
        if fixed_rows is None and self.device.type == "cuda":
            self._padded_size = step_size
        elif fixed_rows is None and has_torch_products(model):
            self._padded_size = padded_size
        self.max_len = max_len
        self.cache = KVCache(
            shape.cache,
            cache.num_pages,
            parameter.dtype,
            self.device,
            transposes_keys=fixed_rows is None
            and shape.has_plain_scoring
            and transposes_keys(parameter.dtype, self.device),
            shares_prefixes=cache.shares_prefixes,
            preempts=not cache.is_target,
            window=self._window(shape.window) if cache.is_target else None,
        )
        self._graphs: StepGraphs | None = None
        self.reset_counts()

    def _window(self, window: int | None) -> int | None:
        """Return how many rows before it a forward reads; None: all of up to max_len."""
        if window is None or window + self.row_multiple > self.max_len:
            return None
        return window + self.row_multiple - 1  # it may compute rows before its first one again

    def reset_counts(self) -> None:
        """Count the model's forwards from now on."""
        self._clock = DeviceClock(self.device)
        self.num_forwards = 0

    @property
    def forward_seconds(self) -> float:
        return self._clock.seconds

    def capture_steps(self) -> None:
        """From now on run steps on a GPU as single launches where possible."""
        has_kernel = self._fixed_rows is None and triton_attention.can_attend(
            self.cache.store.layer(0)[0]
        )
        if has_kernel and self.has_plain_scoring:
            try:
                self._graphs = StepGraphs(self.model, self.cache.store, self.max_len)
            except RuntimeError as error:
                logger.warning("steps are launched kernel by kernel, which is slower: %s", error)
            self._try_prompt()

    def _try_prompt(self) -> None:
        """Compile the kernels that prompts need."""
        positions = np.arange(min(MAX_STEP_ROWS + 1, self.max_len))
        table = self.cache.acquire("trial", np.zeros(0, np.int32))
        segment = Segment(table, 0, np.zeros_like(positions), positions, "causal", positions[-1:])
        self.forward([segment])
        self.cache.reset()
        self.reset_counts()

    def reserve(self, table: PageTable, end: int) -> None:
        """Let forwards write a table's rows before `end`. Raises OutOfPagesError."""
        self.cache.reserve(table, -(-end // self.row_multiple) * self.row_multiple)

    @property
    def is_exact(self) -> bool:
        return self._is_exact or self._fixed_rows is not None

    @property
    def row_multiple(self) -> int:
        """The rows of a table are padded to a multiple of this many."""
        return self._fixed_rows or 1

    @property
    def takes_trees(self) -> bool:
        """Whether `visible` may be the matrix of a tree."""
        return self._fixed_rows is None

    def forward(
        self, segments: Sequence[Segment], hidden_states: HiddenStates | None = None
    ) -> torch.Tensor:
        """Write the rows into the cache and return their segments' logits, [R, V] float32.

        hidden_states: receives the states of all rows, segment by segment.
        """
        logits = self.forward_columns(segments, hidden_states)
        return self.columns.spread(logits) if self.columns else logits

    def forward_columns(
        self, segments: Sequence[Segment], hidden_states: HiddenStates | None = None
    ) -> torch.Tensor:
        """Like `forward`, but return only the model's own `columns` of logits."""
        if self._fixed_rows is None:
            logits = self._forward(segments, hidden_states)
            if hidden_states is not None:
                hidden_states.keep(slice(sum(segment.num_rows for segment in segments)))
            return logits
        pieces = []
        for segment in segments:
            end = segment.start + segment.num_rows
            for padded, rows in self._fixed_pieces(segment, self._fixed_rows):
                pieces.append(self._forward([padded], hidden_states)[rows])
                if hidden_states is not None:
                    first = max(segment.start - padded.start, 0)
                    hidden_states.keep(slice(first, end - padded.start))
        return torch.cat(pieces)

    def _forward(
        self, segments: Sequence[Segment], hidden_states: HiddenStates | None
    ) -> torch.Tensor:
        rows = _join(segments, self._padded_size, self.device.type == "cuda")
        block_size = None if self._fixed_rows is None else EXACT_BLOCK
        packed = PackedBatch(segments, self.cache, block_size, rows.num_padding)
        logits = None
        with self._clock.running():
            if self._graphs is not None and packed.on_gpu is not None and hidden_states is None:
                logits = self._graphs.forward(rows.values, packed.on_gpu.step_table(self._group))
            if logits is None:
                values = to_device(rows.values, self.device)
                logits = self._run(values, rows.size, packed, hidden_states)
        self.num_forwards += 1
        return logits[: rows.num_logits]

    def _run(
        self,
        values: torch.Tensor,
        num_rows: int,
        packed: PackedBatch,
        hidden_states: HiddenStates | None,
    ) -> torch.Tensor:
        token_ids, positions = values[:num_rows], values[num_rows : 2 * num_rows]
        keep_rows = values[2 * num_rows :]
        recording = hidden_states.record(self.model) if hidden_states else contextlib.nullcontext()
        with recording:
            return run_packed(self.model, token_ids, positions, keep_rows, packed).float()

    def renew(self, segment: Segment, must_stop: Callable[[], bool]) -> int | None:
        """Write a segment's rows into the cache again, without logits.

        must_stop is asked after each layer. Returns the number of layers; None if it stopped.
        """
        assert self._fixed_rows is None, "exact rows are never renewed"
        rows = _join([segment], self._padded_size, self.device.type == "cuda")
        packed = PackedBatch([segment], self.cache, None, rows.num_padding)
        values = to_device(rows.values[: 2 * rows.size], self.device)
        token_ids, positions = values.view(2, 1, -1)  # [1, T]
        return run_layers(self.model.get_decoder(), token_ids, positions, packed, must_stop)

    def _fixed_pieces(self, segment: Segment, num_rows: int) -> Iterator[tuple[Segment, list[int]]]:
        """Split a causal segment, and the rows before it, at multiples of num_rows.

        Yields each piece, padded and with logits of all its rows, and the indices of the rows whose
        logits the segment requests.
        """
        assert isinstance(segment.visible, str) and segment.visible == "causal"
        num_before, end = segment.start % num_rows, segment.start + segment.num_rows
        before = segment.table.token_ids[segment.start - num_before : segment.start]
        assert len(before) == num_before, "the rows before a segment must be committed"
        token_ids = np.concatenate([before, segment.token_ids])
        every_row = np.arange(num_rows)
        for start in range(segment.start - num_before, end, num_rows):
            first = start + num_before - segment.start
            padded = np.zeros(num_rows, np.int64)
            mine = token_ids[first : first + num_rows]
            padded[: len(mine)] = mine
            positions = np.minimum(start + every_row, end - 1)  # up to the model's last position
            rows = [row + num_before - first for row in segment.logit_rows]
            wanted = [row for row in rows if 0 <= row < num_rows]
            yield Segment(segment.table, start, padded, positions, "causal", every_row), wanted

    def extend(
        self,
        table: PageTable,
        prefix: TokenIds,
        start: int,
        max_rows: int,
        hidden_states: HiddenStates | None = None,
    ) -> int:
        """Run a prefix causally, max_rows tokens at a time, until at most max_rows are left.

        `start` must be the table's length. Returns the number of tokens then cached.
        """
        while len(prefix) - start > max_rows:
            start = self.feed(table, prefix[start : start + max_rows], start, hidden_states)
        return start

    def feed(
        self,
        table: PageTable,
        token_ids: TokenIds,
        start: int,
        hidden_states: HiddenStates | None = None,
    ) -> int:
        """Run and commit the tokens after the `start` cached ones; return how many are cached."""
        end = start + len(token_ids)
        last_row = [len(token_ids) - 1]
        positions = np.arange(start, end)
        segment = Segment(table, start, token_ids, positions, "causal", last_row)
        self.forward([segment], hidden_states)
        self.cache.commit(table, token_ids, len(token_ids))
        return end


class _ModelInputs(NamedTuple):
    """The inputs of a model: token ids, positions and rows that give logits, in one array."""

    values: NDArray[np.int64]  # [2 * size + number of logits], padding included
    size: int  # number of rows, padding included
    num_padding: int
    num_logits: int  # number of logits, padding excluded


def _join(
    segments: Sequence[Segment], padded_size: Callable[[int], int], is_on_gpu: bool
) -> _ModelInputs:
    """Join the segments' rows. Padding is token 0 at position 0; padded logits are row 0's."""
    num_rows = sum(segment.num_rows for segment in segments)
    num_logits = sum(len(segment.logit_rows) for segment in segments)
    size = padded_size(num_rows)
    padding = np.zeros(size - num_rows, np.int64)
    parts: list[Any] = [segment.token_ids for segment in segments]
    parts.append(padding)
    parts += [segment.positions for segment in segments]
    parts.append(padding)
    parts.append(segments[0].logit_rows)
    first = 0
    for previous, segment in pairwise(segments):
        first += previous.num_rows
        parts.append(np.asarray(segment.logit_rows) + first)
    # Steps on a GPU have as many logits as rows, so that they have few shapes.
    is_step = is_on_gpu and num_logits <= size <= MAX_STEP_ROWS
    num_kept = size if is_step else padded_size(num_logits)
    parts.append(np.zeros(num_kept - num_logits, np.int64))
    return _ModelInputs(np.concatenate(parts, dtype=np.int64), size, len(padding), num_logits)


def padded_size(count: int) -> int:
    """Return the next size at or above a count (1 or more): 1 to 16, then 8 sizes per octave."""
    step = 1 << max((count - 1).bit_length() - 4, 0)
    return -(-count // step) * step
