"""Counts what a training computes: rows a second, and the share of the device's peak."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from diffuspec.pairs.factory.loss import Head

_PEAK_SIZE = {"cpu": 1024, "cuda": 8192}  # rows and columns of the products that measure the peak


class Throughput:
    """The work since the last report: rows of layers, and of the head."""

    def __init__(self, model: Any, head: Head, clock: Callable[[], float] = time.monotonic) -> None:
        decoder = model.get_decoder()
        matrices = [p for p in decoder.layers.parameters() if p.ndim == 2]
        self._layer_weights = sum(matrix.numel() for matrix in matrices)
        self._head_weights = len(head) * model.config.hidden_size
        self._head, self._device, self._clock = head, matrices[0].device, clock
        self._num_rows = self._num_head_rows = 0
        self._since = clock()
        decoder.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if decoder.training:
            inputs = kwargs.get("inputs_embeds")
            inputs = kwargs["input_ids"] if inputs is None else inputs
            self._num_rows += inputs.shape[0] * inputs.shape[1]

    def start(self) -> None:
        """Count from now on."""
        self._num_rows, self._num_head_rows = 0, self._head.num_rows
        self._since = self._clock()

    def describe(self) -> str:
        seconds = max(self._clock() - self._since, 1e-9)
        head_rows = self._head.num_rows - self._num_head_rows
        # A product, its gradient for the rows and, in layers, for the weights.
        flops = 6 * self._num_rows * self._layer_weights + 4 * head_rows * self._head_weights
        share = flops / seconds / peak_flops(self._device.type)
        return f"{self._num_rows / seconds:,.0f} rows/s, {share:.0%} of the peak"


@cache
def peak_flops(device: str) -> float:
    """Measure the operations per second of large products in bfloat16."""
    size = _PEAK_SIZE[device]
    matrix = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    fastest = min(_seconds_of_product(matrix) for _ in range(5))
    return float(2 * size**3 / fastest)


def _seconds_of_product(matrix: torch.Tensor) -> float:
    if matrix.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    matrix @ matrix
    if matrix.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began
