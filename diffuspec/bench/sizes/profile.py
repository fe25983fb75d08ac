"""The kernels of a call, by the time that they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from diffuspec.bench.text_table import TextTable

_NUM_CALLS = 3
_MOST = 25  # kernels in a table
_MAX_NAME = 60


class KernelTime(NamedTuple):
    """A kernel in one call: on a CPU, an operation."""

    name: str
    seconds: float
    num_launches: float


def kernels_of(call: Callable[[], object], device: torch.device) -> list[KernelTime]:
    """Return the kernels of a call; those that take longest in total come first."""
    is_on_gpu = device.type == "cuda"
    call()
    with profile(activities=[ProfilerActivity.CUDA if is_on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(_NUM_CALLS):
            call()
        if is_on_gpu:
            torch.cuda.synchronize(device)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in seen.key_averages():
        microseconds = event.self_device_time_total if is_on_gpu else event.self_cpu_time_total
        totals[event.key][0] += microseconds
        totals[event.key][1] += event.count
    times = [
        KernelTime(name, 1e-6 * total / _NUM_CALLS, launches / _NUM_CALLS)
        for name, (total, launches) in totals.items()
        if total > 0
    ]
    return sorted(times, key=lambda kernel: -kernel.seconds)


def kernel_table(title: str, kernels: list[KernelTime]) -> TextTable:
    """Return the longest kernels of a call, and their sum."""
    total = sum(kernel.seconds for kernel in kernels)
    launches = sum(kernel.num_launches for kernel in kernels)
    cells = [
        (kernel.name[:_MAX_NAME], f"{1e3 * kernel.seconds:.3f}", f"{kernel.num_launches:g}")
        for kernel in kernels[:_MOST]
    ]
    cells.append(("all", f"{1e3 * total:.3f}", f"{launches:g}"))
    return TextTable(title, ("kernel", "ms", "launches"), tuple(cells))
