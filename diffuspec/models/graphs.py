"""Runs steps of a model as CUDA graphs: one launch instead of hundreds.

Launching the kernels one by one takes longer than running them for small models, and as long as
running them for large models.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from diffuspec.models.attention import triton as triton_attention
from diffuspec.models.attention.interface import run_packed
from diffuspec.models.kernels.triton.table import (
    MAX_STEP_ROWS,
    ColumnTable,
    next_num_columns,
)
from diffuspec.models.pages.store import PageStore

_NUM_ROWS = (16, 32, 64, 128, 192, MAX_STEP_ROWS)  # rows of the captured steps, including padding


def step_size(num_rows: int) -> int:
    """Return the number of rows of the captured step that has room for some rows.

    More rows than in any captured step are not padded.
    """
    return next((size for size in _NUM_ROWS if size >= num_rows), num_rows)


class _Shape(NamedTuple):
    num_rows: int
    num_splits: int  # number of splits of attention's columns


class _Graph(NamedTuple):
    """A captured forward, and its inputs."""

    graph: torch.cuda.CUDAGraph
    rows: torch.Tensor
    table: ColumnTable


class StepGraphs:
    """Runs the steps of a model on a GPU, in layers with plain scoring.

    No other thread may use the GPU during capture.
    """

    @torch.inference_mode()
    def __init__(self, model: torch.nn.Module, store: PageStore, max_len: int) -> None:
        """Sequences have up to max_len rows.

        Raises RuntimeError if the model has operations that cannot be captured, like waits.
        """
        self._model, self._store = model, store
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[_Shape, _Graph] = {}
        logits = self._run(*self._empty_step(_NUM_ROWS[0], 1))
        self._logits = logits.new_empty(MAX_STEP_ROWS, logits.shape[1])  # logits of the latest step
        for num_rows in _NUM_ROWS:
            num_columns = 1
            while num_columns <= max_len:
                graph = self._capture(*self._empty_step(num_rows, num_columns))
                num_splits = graph.table.num_splits
                self._graphs[_Shape(num_rows, num_splits)] = graph
                num_columns = next_num_columns(num_splits)

    @torch.inference_mode()
    def forward(self, rows: torch.Tensor, table: ColumnTable | None) -> torch.Tensor | None:
        """Return logits, [T, V] float32; None if there is no graph for this shape.

        rows [3 * T]: token ids and positions of all rows, then the rows whose logits are wanted.
        table: None if this is not a step.
        """
        if table is None or len(rows) != 3 * table.num_rows:
            return None
        graph = self._graphs.get(_Shape(table.num_rows, table.num_splits))
        if graph is None:
            return None
        graph.rows.copy_(rows)
        graph.table.values.copy_(table.values)
        graph.graph.replay()
        return self._logits[: table.num_rows].to(torch.float32, copy=True)

    def _empty_step(self, num_rows: int, num_columns: int) -> tuple[torch.Tensor, ColumnTable]:
        """Return inputs that consist of padding, shaped as if the rows saw num_columns columns."""
        rows = torch.zeros(3 * num_rows, dtype=torch.int64, device=self._store.device)
        return rows, ColumnTable.of_padding(num_rows, num_columns, self._store.device)

    def _capture(self, rows: torch.Tensor, table: ColumnTable) -> _Graph:
        self._run(rows, table)  # compiles the kernels
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._logits[: table.num_rows].copy_(self._run(rows, table))
        return _Graph(graph, rows, table)

    def _run(self, rows: torch.Tensor, table: ColumnTable) -> torch.Tensor:
        step = triton_attention.TableAttention(self._store, table)
        token_ids, positions, keep_rows = rows.chunk(3)
        return run_packed(self._model, token_ids, positions, keep_rows, step)
