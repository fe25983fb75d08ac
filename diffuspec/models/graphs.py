"""Runs steps of a model as CUDA graphs: one launch instead of hundreds.

Launching the kernels one by one takes longer than running them for small models, and as long as
running them for large models.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.algorithm.transfers import pinned
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
    """A captured forward, and its inputs: those of the model, then the values of the table."""

    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor  # int32


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
        logits = self._run(*self._placed(ColumnTable.of_padding(_NUM_ROWS[0], 1))[1:])
        self._logits = logits.new_empty(MAX_STEP_ROWS, logits.shape[1])  # logits of the latest step
        for num_rows in _NUM_ROWS:
            num_columns = 1
            while num_columns <= max_len:
                table = ColumnTable.of_padding(num_rows, num_columns)
                self._graphs[_Shape(num_rows, table.num_splits)] = self._capture(table)
                num_columns = next_num_columns(table.num_splits)

    @torch.inference_mode()
    def forward(self, rows: NDArray[np.int64], table: ColumnTable | None) -> torch.Tensor | None:
        """Return logits, [T, V] float32; None if there is no graph for this shape.

        rows [3 * T]: token ids and positions of all rows, then the rows whose logits are wanted.
        table: None if this is not a step. Nothing waits for the step.
        """
        if table is None or len(rows) != 3 * table.num_rows:
            return None
        graph = self._graphs.get(_Shape(table.num_rows, table.num_splits))
        if graph is None:
            return None
        inputs = torch.from_numpy(np.concatenate([rows.view(np.int32), table.values.numpy()]))
        graph.inputs.copy_(pinned(inputs), non_blocking=True)  # one copy
        graph.graph.replay()
        return self._logits[: table.num_rows].to(torch.float32, copy=True)

    def _placed(self, table: ColumnTable) -> tuple[torch.Tensor, torch.Tensor, ColumnTable]:
        """Return inputs on the device: all of them, those of the model, and the table."""
        rows = torch.zeros(3 * table.num_rows, dtype=torch.int64).view(torch.int32)
        inputs = torch.cat((rows, table.values)).to(self._store.device)
        placed = table.at(inputs[len(rows) :])
        return inputs, inputs[: len(rows)].view(torch.int64), placed

    def _capture(self, table: ColumnTable) -> _Graph:
        inputs, rows, placed = self._placed(table)
        self._run(rows, placed)  # compiles the kernels
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._logits[: table.num_rows].copy_(self._run(rows, placed))
        return _Graph(graph, inputs)

    def _run(self, rows: torch.Tensor, table: ColumnTable) -> torch.Tensor:
        step = triton_attention.TableAttention(self._store, table)
        token_ids, positions, keep_rows = rows.chunk(3)
        return run_packed(self._model, token_ids, positions, keep_rows, step)
