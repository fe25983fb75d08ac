"""The machines of the study, with the costs of such hardware in round numbers."""

from __future__ import annotations

import math

import numpy as np

from diffuspec.bench.planning.machines import CallSize, Machine


class TwoCores(Machine):
    """Two cores that both roles share in one process: a small embedded pair."""

    name = "two_cores"
    interference = 0.45

    def verify_seconds(self, size: CallSize) -> float:
        return 0.005 + 0.0012 * size.num_requests + 0.0002 * size.num_all

    def draft_seconds(self, size: CallSize) -> float:
        return (
            0.005 + 0.0015 * size.num_requests + 0.0001 * size.num_rows + 0.00005 * size.num_unread
        )


class BusyCores(Machine):
    """Two cores and a process per role; other programs run in one of every four seconds."""

    name = "busy_cores"
    interference = 0.1
    network_seconds = 400e-6
    overlap = True

    def slowness(self, now: float) -> float:
        return 4.0 if now % 4 < 1 else 1.0

    def verify_seconds(self, size: CallSize) -> float:
        return 0.0018 + 0.0004 * size.num_requests + 0.0001 * size.num_all

    def draft_seconds(self, size: CallSize) -> float:
        return (
            0.0035
            + 0.0008 * size.num_requests
            + 0.00008 * size.num_rows
            + 0.00003 * size.num_unread
        )


class SlowCpu(Machine):
    """A processor with little computing power beyond reading weights: every row costs time.

    The second row is cheap, the third and fourth cost more, and each further row costs 0.6 of a
    single row. Both roles share the processor: side by side, each takes twice as long.
    """

    name = "slow_cpu"
    interference = 1.0

    _ONE_ROW = 0.086
    _IN_ROWS = (0.0, 1.0, 1.25, 1.825, 2.4)  # time of 0 to 4 rows, relative to a single row
    _FURTHER_ROW = 0.6

    def verify_seconds(self, size: CallSize) -> float:
        few = self._IN_ROWS[min(size.num_all, 4)]
        return self._ONE_ROW * (few + self._FURTHER_ROW * max(size.num_all - 4, 0))

    def draft_seconds(self, size: CallSize) -> float:
        return 0.055 + 0.003 * size.num_rows + 0.0015 * size.num_unread


class NoisyCpu(Machine):
    """A processor with weights of 4 bits, on which drafts hardly pay, beside noisy neighbours.

    Times vary by 5 % from call to call, and double in a tenth of all periods of 60 ms.
    """

    name = "noisy_cpu"
    interference = 1.0

    _ROWS = (0, 1, 2, 4, 8, 32, 1024)
    _SECONDS = (0.0, 0.0067, 0.0076, 0.0101, 0.0167, 0.059, 1.9)

    def slowness(self, now: float) -> float:
        jitter = math.exp(0.05 * _random(now * 1e6).standard_normal())
        burst = 1 + (_random(now / 0.06).random() < 0.1)
        return jitter * burst

    def verify_seconds(self, size: CallSize) -> float:
        return float(np.interp(size.num_all, self._ROWS, self._SECONDS))

    def draft_seconds(self, size: CallSize) -> float:
        return (
            0.0042 + 0.0006 * size.num_requests + 0.0002 * size.num_rows + 0.0002 * size.num_unread
        )


def _random(period: float) -> np.random.Generator:
    """Return a generator of the numbers of a period of time."""
    return np.random.default_rng(int(period))


class OneGpu(Machine):
    """One GPU that both roles share: time is constant up to many rows, and calls hardly overlap."""

    name = "one_gpu"
    interference = 0.9

    def verify_seconds(self, size: CallSize) -> float:
        return 0.020 + 0.00015 * max(size.num_all - 64, 0)

    def draft_seconds(self, size: CallSize) -> float:
        return 0.009 + 0.00005 * max(size.num_all - 128, 0)


class OwnGpu(OneGpu):
    """A drafter on its own GPU, as fast as the target's, over a network in one building."""

    name = "own_gpu"
    interference = 0.0
    network_seconds = 100e-6
    overlap = True


class EightGpus(Machine):
    """A target on eight GPUs, and a pool of two drafters on their own GPUs, over a network.

    A draft call takes nearly as long as a verification of a few rows.
    """

    name = "eight_gpus"
    network_seconds = 100e-6
    num_drafters = 2
    overlap = True

    def verify_seconds(self, size: CallSize) -> float:
        return 0.015 + 0.00003 * max(size.num_all - 256, 0)

    def draft_seconds(self, size: CallSize) -> float:
        return 0.012 + 0.00006 * max(size.num_all - 64, 0)


MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (TwoCores(), BusyCores(), SlowCpu(), NoisyCpu(), OneGpu(), OwnGpu(), EightGpus())
}
