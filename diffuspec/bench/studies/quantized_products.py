"""`python -m diffuspec.bench.studies.quantized_products`: products of quantised weights on a GPU.

A step multiplies few rows with weights that are too many for the caches, so that its time is that
of reading them. Weights have the sizes of a layer of Qwen2.5-32B and random numbers; several copies
are multiplied in turn, so that none is found in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.command import Command
from diffuspec.models.kernels.products import Int8Matrix
from diffuspec.models.kernels.quantized import Groups, Layout
from diffuspec.models.kernels.triton.availability import is_available
from diffuspec.models.kernels.triton.matrix import GpuMatrix

SHAPES = ((27648, 5120), (5120, 27648))  # outputs and inputs
NUM_ROWS = (1, 4, 16, 64, 256)
_READ_BYTES = 600_000_000  # size of all copies of a weight
_NUM_CALLS = 24  # calls in a launch
_NUM_LAUNCHES = 9

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Weight:
    """A way to store a weight."""

    num_bytes: int
    multiply: Callable[[Tensor], Tensor]


@torch.inference_mode()
def study_products(shape: tuple[int, int], all_rows: Sequence[int]) -> TextTable:
    """Return microseconds of a product, and 10^9 bytes of weights a second, by format and rows."""
    device = torch.device("cuda")
    cells = []
    for name, make in FORMATS.items():
        weights = [make(shape, device)]
        while len(weights) * weights[0].num_bytes < _READ_BYTES:
            weights.append(make(shape, device))
        rows = torch.randn(max(all_rows), shape[1], device=device, dtype=torch.bfloat16)
        seconds = [seconds_of(weights, rows[:count]) for count in all_rows]
        most = weights[0].multiply(rows)
        is_same = all(
            torch.equal(weights[0].multiply(rows[:count]), most[:count]) for count in all_rows
        )
        figures = [f"{1e6 * one:.0f}" for one in seconds]
        figures += [f"{weights[0].num_bytes / one / 1e9:,.0f}" for one in seconds]
        cells.append((name, *figures, "yes" if is_same else "no"))
        del weights
    outputs, inputs = shape
    columns = (
        f"{inputs} x {outputs}",
        *(f"{count} rows, µs" for count in all_rows),
        *(f"{count} rows, GB/s" for count in all_rows),
        "same bits",
    )
    title = f"Products on one {torch.cuda.get_device_name()}"
    return TextTable(title, columns, tuple(cells))


def seconds_of(weights: Sequence[Weight], rows: Tensor) -> float:
    """Return the time of a product, the median of some launches of graphs of many."""
    for weight in weights:
        weight.multiply(rows)  # compiles its kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(_NUM_CALLS):
            weights[number % len(weights)].multiply(rows)
    times: list[float] = []
    make_event: Any = torch.cuda.Event
    for _ in range(_NUM_LAUNCHES):
        start, end = make_event(enable_timing=True), make_event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000 / _NUM_CALLS)
    return median(times)


def _in_bfloat16(shape: tuple[int, int], device: torch.device) -> Weight:
    weight = torch.randn(shape, device=device, dtype=torch.bfloat16)
    return Weight(weight.nbytes, lambda rows: functional.linear(rows, weight))


def _in_groups(layout: Layout, shape: tuple[int, int], groups: Groups) -> Weight:
    from diffuspec.models.kernels.triton.products import GroupsProduct  # imports Triton

    matrix = GpuMatrix(layout, shape, [groups], groups.numbers.device)
    product = GroupsProduct([matrix], None, torch.bfloat16)
    return Weight(product.num_bytes, product)


def _numbers(
    shape: tuple[int, int], least: int, most: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.randint(least, most + 1, shape, dtype=dtype, device=device)


def _q8_0(shape: tuple[int, int], device: torch.device) -> Weight:
    numbers = _numbers(shape, -127, 127, torch.int8, device)
    scales = torch.rand(shape[0], shape[1] // 32, device=device).half()
    return _in_groups(Layout(8, 32), shape, Groups(numbers, scales))


def _q4_k(shape: tuple[int, int], device: torch.device) -> Weight:
    numbers = _numbers(shape, 0, 15, torch.uint8, device)
    supers = torch.rand(shape[0], shape[1] // 256, device=device).half()
    codes = _numbers((shape[0], shape[1] // 32), 0, 63, torch.int8, device)
    return _in_groups(Layout(4, 32, ratio=8), shape, Groups(numbers, supers, codes, -supers, codes))


def _awq(shape: tuple[int, int], device: torch.device) -> Weight:
    numbers = _numbers(shape, 0, 15, torch.uint8, device)
    scales = torch.rand(shape[0], shape[1] // 128, device=device).half()
    zeros = _numbers((shape[0], shape[1] // 128), 0, 15, torch.int8, device)
    return _in_groups(Layout(4, 128), shape, Groups(numbers, scales, zeros=zeros))


def _gptq(shape: tuple[int, int], device: torch.device) -> Weight:
    numbers = _numbers(shape, 0, 15, torch.uint8, device)
    scales = torch.rand(shape[0], shape[1] // 128, device=device).half()
    return _in_groups(Layout(4, 128, zero=8), shape, Groups(numbers, scales))


def _w8a8(shape: tuple[int, int], device: torch.device) -> Weight:
    from diffuspec.models.kernels.triton.products import Int8Product  # imports Triton

    numbers = _numbers(shape, -127, 127, torch.int8, device)
    scales = torch.rand(shape[0], device=device)
    product = Int8Product(Int8Matrix(numbers, scales), None, torch.bfloat16)
    return Weight(product.num_bytes, product)


FORMATS: dict[str, Callable[[tuple[int, int], torch.device], Weight]] = {
    "bfloat16, cuBLAS": _in_bfloat16,
    "8 bits, groups of 32 (Q8_0)": _q8_0,
    "8 bits, inputs rounded (W8A8)": _w8a8,
    "4 bits, groups of 32 (Q4_K)": _q4_k,
    "4 bits, groups of 128 (AWQ)": _awq,
    "4 bits, groups of 128 (GPTQ)": _gptq,
}


@app.command(cls=Command)
def main() -> None:
    """Time products of weights of real sizes in several formats; print a table."""
    if not is_available():
        raise typer.BadParameter("needs a GPU on which Triton compiles kernels")
    print_tables([study_products(shape, NUM_ROWS) for shape in SHAPES], [], Console())


if __name__ == "__main__":
    app()
