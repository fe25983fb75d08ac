"""Memory and descriptors of a service's processes at one time."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import psutil

from deploy.processes import service_processes

ProcessId: TypeAlias = tuple[int, float]  # pid and time of its start

_MIB = 2**20
_PER_REQUESTS = 1000
_MIN_POINTS = 8


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process."""

    name: str  # title or program; several processes may have the same
    resident_bytes: int
    num_descriptors: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes of a service after a number of requests."""

    num_requests: int
    processes: Mapping[ProcessId, ProcessSample]

    @property
    def resident_mib(self) -> float:
        return sum(process.resident_bytes for process in self.processes.values()) / _MIB


def take(port: int, num_requests: int) -> Sample:
    """Return a sample of the processes of the service that listens on a port."""
    processes = {}
    for process in service_processes(port):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            processes[process.pid, process.create_time()] = ProcessSample(
                _name(process), process.memory_info().rss, process.num_fds()
            )
    return Sample(num_requests, processes)


def _name(process: psutil.Process) -> str:
    """Return the title that Ray gives its workers, else the name of the program."""
    title = " ".join(process.cmdline())
    return title.split()[0] if title.startswith("ray::") else str(process.name())


def growth_mib(samples: Sequence[Sample]) -> float:
    """Return by how many MiB per 1,000 requests the processes at the end grow, in sum.

    A process that has not been there for half of the samples is still warming up: it grows like the
    one of its name that was there longest. If that was killed before half of the samples, too,
    nothing is known of that name's growth, and it counts as none.
    """
    points: dict[ProcessId, list[tuple[float, float]]] = {}
    for sample in samples:
        for process, taken in sample.processes.items():
            point = (sample.num_requests / _PER_REQUESTS, taken.resident_bytes / _MIB)
            points.setdefault(process, []).append(point)
    names = {process: one.name for at in samples for process, one in at.processes.items()}
    longest: dict[str, list[tuple[float, float]]] = {}
    for process, series in points.items():
        if len(series) > len(longest.get(names[process], ())):
            longest[names[process]] = series
    half = len(samples) / 2
    return sum(
        _slope(points[process] if len(points[process]) >= half else longest[names[process]])
        for process in (samples[-1].processes if samples else ())
        if len(longest[names[process]]) >= half
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between any two points, which single jumps do not move."""
    if len(points) < _MIN_POINTS:
        return 0.0
    slopes = [
        (late - early) / (after - before)
        for (before, early), (after, late) in itertools.combinations(points, 2)
        if after > before
    ]
    return statistics.median(slopes) if slopes else 0.0


def more_descriptors(samples: Sequence[Sample]) -> dict[str, float]:
    """Return how many descriptors more each process has in the last third than in the first.

    By name and id, of those that are in all samples; medians, for connections come and go.
    """
    third = len(samples) // 3
    if not third:
        return {}
    lasting = set.intersection(*(set(sample.processes) for sample in samples))

    def usual(process: ProcessId, part: Sequence[Sample]) -> float:
        return statistics.median(sample.processes[process].num_descriptors for sample in part)

    return {
        f"{samples[0].processes[process].name} ({process[0]})": usual(process, samples[-third:])
        - usual(process, samples[:third])
        for process in lasting
    }
