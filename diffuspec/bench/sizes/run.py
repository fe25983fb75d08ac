"""`bench --sizes` from its options to tables: everything is on disk as soon as it is measured."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from diffuspec.bench.machine import describe_machine
from diffuspec.bench.planning.costs import write_costs
from diffuspec.bench.sizes.calls import Calls, Timed
from diffuspec.bench.sizes.costs import costs_of
from diffuspec.bench.sizes.models import (
    SizedDrafter,
    SizedTarget,
    draw_drafter,
    draw_target,
    find_configuration,
)
from diffuspec.bench.sizes.profile import kernel_table, kernels_of
from diffuspec.bench.sizes.results import Results
from diffuspec.bench.sizes.timing import measure_speeds
from diffuspec.core.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of the calls to time."""

    prefixes: tuple[int, ...] = (512, 4096, 16384)  # tokens
    drafted: tuple[int, ...] = (8, 16, 32, 63)  # tokens of a draft
    requests: tuple[int, ...] = (8, 32)  # at a time, besides one
    several_prefix: int = 2000  # tokens of each of several requests
    several_drafted: int = 8
    seconds: float = 0.3  # time for which each call is repeated


def run_sizes(
    target: Path,
    drafter: Path | None,
    out: Path,
    console: Console,
    *,
    dtype: str | None = None,
    profiles: bool = False,
    plan: Plan | None = None,
) -> int:
    """Measure models of the sizes in configurations; write sizes.json, costs.json and sizes.md.

    Returns 0. Raises ConfigError, ModelLoadError.
    """
    paths = find_configuration(target), None if drafter is None else find_configuration(drafter)
    plan = plan or Plan()
    own, other = _draw(*paths, plan, dtype)
    prefixes = _fitting(plan.prefixes, own)
    device = own.runner.device
    results = Results(
        describe_machine(device, own.backend.dtype),
        measure_speeds(device, own.backend.dtype),
        own,
        other,
        None if other is None else other.refresh_every,
    )
    results.peak_bytes["loading"] = _peak_bytes(device)
    with closing(Calls(own, other, plan.seconds)) as calls:
        for row in _rows(calls, plan, prefixes, other):
            results.rows.append(row)
            logger.info("%s", row)
            results.write(out / "sizes.json")
        results.peak_bytes["calls"] = _peak_bytes(device)
        results.write(out / "sizes.json")
        write_costs(out / "costs.json", costs_of(results))
        tables = results.tables()
        if profiles:
            for title, call in _profiled(calls, prefixes, other):
                tables.append(kernel_table(title, kernels_of(call, device)))
    for table in tables:
        console.print(*table.to_rich(console.width))
    notes = list(_notes(results))
    console.print(*notes, sep="\n", highlight=False)
    text = "\n".join([*(table.to_markdown() for table in tables), *notes, ""])
    (out / "sizes.md").write_text(text, encoding="utf-8")
    return 0


def _draw(
    target: Path, drafter: Path | None, plan: Plan, dtype: str | None
) -> tuple[SizedTarget, SizedDrafter | None]:
    longest, num_requests = max(plan.prefixes), max((1, *plan.requests))
    own = draw_target(target, longest, num_requests, dtype)
    if drafter is None:
        return own, None
    return own, draw_drafter(drafter, own.target.info, dtype)


def _fitting(prefixes: tuple[int, ...], target: SizedTarget) -> tuple[int, ...]:
    """Return the prefixes for which the model has positions. Raises ConfigError."""
    room = target.target.info.max_model_len
    found = tuple(prefix for prefix in prefixes if prefix + 64 <= room)
    if not found:
        needed = min(prefixes) + 64
        raise ConfigError(f"{target.name} has {room} positions: {needed} are needed")
    return found


def _rows(
    calls: Calls, plan: Plan, prefixes: tuple[int, ...], drafter: SizedDrafter | None
) -> Iterator[Timed]:
    """Yield the timed calls, those of one request first."""
    for prefix in prefixes:
        yield calls.prompt(prefix)
        for drafted in (0, *plan.drafted):
            yield calls.verify(1, prefix, drafted)
        yield calls.verify(1, prefix, plan.drafted[0], samples=True)
        if drafter is not None:
            for drafted in plan.drafted:
                yield calls.draft(1, prefix, drafted)
            if drafter.refresh_every is not None:
                yield calls.refresh(prefix, plan.drafted[0])
        calls.release(1)
    for requests in plan.requests:
        prefix = min(plan.several_prefix, prefixes[-1])
        for drafted in (0, plan.several_drafted):
            yield calls.verify(requests, prefix, drafted)
        if drafter is not None:
            yield calls.draft(requests, prefix, plan.several_drafted)
        calls.release(requests)


def _profiled(
    calls: Calls, prefixes: tuple[int, ...], drafter: SizedDrafter | None
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the calls whose kernels are shown, with their titles."""
    for prefix in dict.fromkeys((prefixes[0], prefixes[-1])):
        for drafted in (0, 16):
            what = f"Kernels of a verification of {drafted} tokens behind {prefix:,}"
            yield what, calls.verification(1, prefix, drafted)
    if drafter is not None:
        what = f"Kernels of a draft of 16 tokens behind {prefixes[0]:,}"
        yield what, calls.drafting(1, prefixes[0], 16)


def _notes(results: Results) -> Iterator[str]:
    speeds, peak = results.speeds, results.peak_bytes
    yield f"{results.target.name}: {results.target.backend}"
    if results.drafter is not None:
        yield f"{results.drafter.name}: {results.drafter.backend.arithmetic}"
    yield (
        f"A copy reads and writes {speeds.copy / 1e9:,.0f} GB/s, a large product has "
        f"{speeds.product / 1e12:.1f} TFLOP/s."
    )
    loading, after = peak["loading"] / 1e9, peak["calls"] / 1e9
    yield f"Peak memory: {loading:.1f} GB in loading, {after:.1f} GB after all calls."


def _peak_bytes(device: torch.device) -> int:
    """Return the most memory taken so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
