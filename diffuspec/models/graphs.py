"""Steps of a model as CUDA graphs: one launch in place of hundreds.

To launch the kernels one by one takes longer than small models need to run them, and as long as
large ones need.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from diffuspec.models.attention import gpu
from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.interface import run_packed
from diffuspec.models.rows.gpu.table import SPLIT, RowsTable

_NUM_ROWS = (16, 32, 64)  # of steps, with padding


class _Shape(NamedTuple):
    num_rows: int
    num_splits: int  # of attention


class _Graph(NamedTuple):
    """A captured forward: what it reads, and what it writes."""

    graph: torch.cuda.CUDAGraph
    rows: torch.Tensor
    table: RowsTable
    logits: torch.Tensor


class StepGraphs:
    """Runs the steps of a model on a GPU, in layers with plain scoring.

    No other thread may use the GPU while they are captured.
    """

    @torch.inference_mode()
    def __init__(self, model: torch.nn.Module, cache: KVCache) -> None:
        """Raises RuntimeError if the model does what cannot be captured, such as to wait."""
        self._model, self._cache = model, cache
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[_Shape, _Graph] = {}
        for num_rows in _NUM_ROWS:
            num_columns = 1
            while num_columns <= cache.max_len:
                table = RowsTable.of_padding(num_rows, num_columns, cache.device)
                rows = torch.zeros(3 * num_rows, dtype=torch.int64, device=cache.device)
                self._run(rows, table)  # compiles its kernels
                self._graphs[_Shape(num_rows, table.num_splits)] = self._capture(rows, table)
                num_columns = table.num_splits * SPLIT + 1

    @torch.inference_mode()
    def forward(self, rows: torch.Tensor, table: RowsTable | None) -> torch.Tensor | None:
        """Return logits, [T, V] float32; None if there is no graph for this shape.

        rows [3 * T]: token ids and positions of all rows, then the rows whose logits are wanted.
        The table is None if this is no step.
        """
        if table is None or len(rows) != 3 * table.num_rows:
            return None
        graph = self._graphs.get(_Shape(table.num_rows, table.num_splits))
        if graph is None:
            return None
        graph.rows.copy_(rows)
        graph.table.values.copy_(table.values)
        graph.graph.replay()
        return graph.logits.clone()

    def _capture(self, rows: torch.Tensor, table: RowsTable) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self._run(rows, table)
        return _Graph(graph, rows, table, logits)

    def _run(self, rows: torch.Tensor, table: RowsTable) -> torch.Tensor:
        step = gpu.TableAttention(self._cache, table)
        token_ids, positions, keep_rows = rows.chunk(3)
        return run_packed(self._model, token_ids, positions, keep_rows, step).float()
