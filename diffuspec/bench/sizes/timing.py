"""Times of calls, and the speeds of the device that they are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import torch

_COPIED = {"cuda": 1 << 30, "cpu": 1 << 27}  # bytes, more than caches hold
_SIDE = {"cuda": 8192, "cpu": 1024}  # rows and columns of the multiplied matrices
_ROUNDS = 5
_MAX_CALLS = 40


class Speeds(NamedTuple):
    """The speeds of a device."""

    copy: float  # bytes read and written per second by a large copy
    product: float  # operations per second of a large matrix product


class Times(NamedTuple):
    """Seconds of a call, of several calls."""

    median: float
    least: float

    @classmethod
    def of(cls, calls: Iterator[Callable[[], object]], seconds: float, least: int = 3) -> Times:
        """Time calls until there are `least` and `seconds` are over; the first is not counted."""
        next(calls)()
        times: list[float] = []
        began = time.perf_counter()
        while len(times) < _MAX_CALLS:
            call = next(calls)
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
            if len(times) >= least and time.perf_counter() - began >= seconds:
                break
        return cls(median(times), min(times))


def measure_speeds(device: torch.device, dtype: torch.dtype) -> Speeds:
    """Measure the device's copy and its matrix product in a type."""
    source = torch.empty(_COPIED[device.type], dtype=torch.uint8, device=device)
    target, side = torch.empty_like(source), _SIDE[device.type]
    matrix = torch.randn(side, side, device=device).to(dtype)
    copying = _least_seconds(lambda: target.copy_(source), device)
    multiplying = _least_seconds(lambda: matrix @ matrix, device)
    return Speeds(2 * source.nbytes / copying, 2 * side**3 / multiplying)


def _least_seconds(operation: Callable[[], object], device: torch.device) -> float:
    def call() -> None:
        operation()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)
