"""Costs measured here: a target's verifications and a drafter's drafts by size, for plans.

Calls go through the roles' interfaces, with no request running. Sizes take turns over several
rounds, so that a slowdown of the machine affects all of them; the median of each counts. What a
step takes besides its calls is measured by decoding without drafts, then with them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from diffuspec.algorithm.draft_tree import chain
from diffuspec.bench.planning.costs import (
    CallCosts,
    Curve,
    DeviceCosts,
    Figure,
    ModelCosts,
)
from diffuspec.bench.planning.machines import CallSize
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest, TokenIds, VerifyRequest
from diffuspec.engine.engine import Engine

_SHORT, _LONG = 64, 448  # tokens of prefixes
_ROWS = (1, 2, 4, 8, 16, 32, 64)  # one request verifies so many
_POSITIONS = (1, 4, 8, 16, 32)
_MANY = 8  # requests
_ROUNDS = 10
_DECODED = 32  # tokens of an answer
_DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8, num_outcomes=0, tree_shape="path")


class _Size(NamedTuple):
    num_requests: int
    num_rows: int  # each request has so many
    num_prefix_tokens: int = _SHORT
    is_read: bool = True  # whether the prefix is cached

    @property
    def total(self) -> int:
        return self.num_requests * self.num_rows


async def measure_costs(engine: Engine, name: str, source: str, device: str) -> DeviceCosts:
    """Measure an engine's calls, and return them as those of a model `name` on a device.

    The engine must have room for eight sequences, and no requests.
    """
    costs, interference = await _measure(engine, source)
    return DeviceCosts(
        device=device,
        memory_bytes=_figure(memory_bytes(device)),
        interference=_figure(interference),
        models={name: costs},
    )


def memory_bytes(device: str) -> float:
    """Return the memory of a kind of device."""
    if device != "cpu":
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


async def _measure(engine: Engine, source: str) -> tuple[ModelCosts, float]:
    calls, draft, interference = _Calls(engine), None, 0.0
    engine.reset_prefix_cache()  # prompts are read again if they were measured before
    alone = _costs(await calls.verifications(), _ROWS)
    verify = _with_overhead(alone, await _overhead(engine, PLAIN, alone))
    if engine.drafter is not None:
        draft = _costs(await calls.drafts(engine.drafter), _POSITIONS)
        interference = await calls.interference(engine.drafter, alone, draft)
        draft = _with_overhead(draft, await _overhead(engine, _DRAFTED, verify, draft))
    await engine.stop()
    path, store = engine.config.target.path, engine.runners[0].cache.store
    costs = ModelCosts(
        source=source,
        verify=verify,
        draft=draft,
        weight_bytes=_figure(sum(one.stat().st_size for one in path.parent.glob(_weights(path)))),
        cache_bytes=_figure(store.shape.num_bytes(1, store.dtype)),
    )
    return costs, interference


def _weights(path: Path) -> str:
    """Return the pattern of the files of a model's weights, below its folder."""
    return f"{path.name}/*.safetensors" if path.is_dir() else path.name


def _figure(value: float) -> Figure:
    return Figure(value=max(value, 0.0), origin="measured here")


def _costs(seconds: Mapping[_Size, float], sizes: Sequence[int]) -> CallCosts:
    """Return the costs that explain the measured seconds. Curves are made to rise."""
    highest, points = 0.0, []
    for size in sizes:
        highest = max(highest, seconds[_Size(1, size)])
        points.append((float(size), highest))
    curve = Curve(points=tuple(points), origin="measured here")
    wide = sizes[-1]
    seen = seconds[_Size(1, 1, _LONG)] - seconds[_Size(1, 1)]
    of_wide = seconds[_Size(1, wide, _LONG)] - seconds[_Size(1, wide)]
    row_context = max(of_wide - seen, 0.0) / (wide - 1) / (_LONG - _SHORT)
    several = [
        (seconds[one] - curve.at(one.total)) / (_MANY - 1)
        for one in (_Size(_MANY, 1), _Size(_MANY, 8))
    ]
    reading = seconds[_Size(1, 1, _LONG, is_read=False)] - seconds[_Size(1, 1, _LONG)]
    return CallCosts(
        rows=curve,
        request=_figure(sum(several) / len(several)),
        context=_figure(seen / (_LONG - _SHORT) - row_context),
        row_context=_figure(row_context),
        reading=_figure(reading / _LONG - row_context * _LONG / 2),
    )


class _Overhead(NamedTuple):
    """Seconds of a step besides its calls."""

    first: float  # seconds for one request
    further: float  # more seconds for each further request


def _with_overhead(costs: CallCosts, overhead: _Overhead) -> CallCosts:
    points = tuple((rows, seconds + overhead.first) for rows, seconds in costs.rows.points)
    rows = costs.rows.model_copy(update={"points": points})
    request = _figure(costs.request.value + overhead.further)
    return costs.model_copy(update={"rows": rows, "request": request})


async def _overhead(
    engine: Engine,
    speculation: SpeculationParams,
    verify: CallCosts,
    draft: CallCosts | None = None,
) -> _Overhead:
    """Decode, and return what steps take besides calls at these costs."""
    one, many = [
        await _unexplained(engine, number, speculation, verify, draft) for number in (1, _MANY)
    ]
    return _Overhead(max(one, 0.0), (many - one) / (_MANY - 1))


async def _unexplained(
    engine: Engine,
    number: int,
    speculation: SpeculationParams,
    verify: CallCosts,
    draft: CallCosts | None,
) -> float:
    """Return the median seconds of the steps of `number` requests that the costs do not explain."""
    sampling, found = SamplingParams(max_tokens=_DECODED, ignore_eos=True), list[float]()

    async def decode(request: int) -> list[tuple[float, int]]:
        prompt = _prompt(engine, _SHORT, request).tolist()
        stream = engine.stream(prompt, sampling, speculation)
        return [(time.monotonic(), output.step.num_tree_nodes) async for output in stream]

    for _ in range(_ROUNDS):
        steps, *_ = await asyncio.gather(*[decode(request) for request in range(number)])
        for (before, _), (after, num_nodes) in pairwise(steps[1:]):  # after the prompts
            size = CallSize(number, number * (1 + num_nodes), 0, number * _SHORT)
            explained = verify.seconds(size)
            if draft is not None:
                positions = number * speculation.num_draft_tokens
                explained += draft.seconds(size._replace(num_rows=positions))
            found.append(after - before - explained)
    return median(found)


def _prompt(engine: Engine, size: int, number: int) -> TokenIds:
    ids = (7919 * np.arange(1 + number, 1 + number + size)) % engine.info.vocab_size
    return np.asarray(ids, np.int32)


class _Calls:
    """Timed calls of an engine's roles."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0  # the next unread prefix has this number

    async def verifications(self) -> dict[_Size, float]:
        """Return the median seconds of verifications."""
        verifier: Verifier = self._engine.verifier
        return await self._medians(_ROWS, lambda size: verifier.verify(self._trees(size)), verifier)

    def _prefix(self, size: _Size) -> TokenIds:
        """Return a prefix; one that has never been read if the size wants that."""
        self._number += not size.is_read
        number = 0 if size.is_read else self._number
        return _prompt(self._engine, size.num_prefix_tokens, number)

    def _trees(self, size: _Size) -> list[VerifyRequest]:
        tree, prompt = chain([1] * (size.num_rows - 1)), self._prefix(size)
        return [
            VerifyRequest(self._name(size, n), prompt, len(prompt), tree, SamplingParams())
            for n in range(size.num_requests)
        ]

    async def drafts(self, drafter: Drafter) -> dict[_Size, float]:
        """Return the median seconds of draft calls."""
        return await self._medians(
            _POSITIONS, lambda size: drafter.draft(self._wanted(size)), drafter
        )

    def _wanted(self, size: _Size) -> list[DraftRequest]:
        usual, prompt = SpeculationParams(), self._prefix(size)
        how = usual.tree_shape, usual.max_nodes, 0.5, SamplingParams()
        return [
            DraftRequest(
                self._name(size, n), prompt, size.num_rows, *how, num_prompt_tokens=len(prompt)
            )
            for n in range(size.num_requests)
        ]

    @staticmethod
    def _name(size: _Size, number: int) -> str:
        return f"sizes-{size.num_prefix_tokens}-{size.is_read}-{number}"

    async def interference(self, drafter: Drafter, verify: CallCosts, draft: CallCosts) -> float:
        """Return the seconds that a second of one role's calls adds to the other's."""
        one, drafted = _Size(1, 8), _Size(1, 16)
        alone = verify.rows.at(one.total), draft.rows.at(drafted.total)
        times: dict[_Size, list[float]] = {one: [], drafted: []}
        count = max(round(alone[0] / alone[1]), 1)  # draft calls beside one verification

        async def run(size: _Size, repeats: int, call: Callable[[], Awaitable[Any]]) -> None:
            started = time.monotonic()
            for _ in range(repeats):
                await call()
            times[size].append((time.monotonic() - started) / repeats)

        others = max(round(alone[1] / alone[0]), 1)
        trees, wanted = self._trees(one), self._wanted(drafted)
        for _ in range(_ROUNDS):
            await asyncio.gather(
                run(one, 4 * others, lambda: self._engine.verifier.verify(trees)),
                run(drafted, 4 * count, lambda: drafter.draft(wanted)),
            )
        slower = [median(times[one]) / alone[0], median(times[drafted]) / alone[1]]
        await self._engine.verifier.release(trees[0].request_id)
        await drafter.release(wanted[0].request_id)
        return min(max(sum(slower) / 2 - 1, 0.0), 1.0)

    async def _medians(
        self,
        rows: Sequence[int],
        call: Callable[[_Size], Awaitable[Any]],
        role: Verifier | Drafter,
    ) -> dict[_Size, float]:
        sizes = [*(_Size(1, number) for number in rows), _Size(_MANY, 1), _Size(_MANY, 8)]
        sizes += [_Size(1, 1, _LONG), _Size(1, rows[-1], _LONG), _Size(1, 1, _LONG, is_read=False)]
        seconds: dict[_Size, list[float]] = defaultdict(list)
        for round_number in range(1 + _ROUNDS):  # the first reads the prefixes
            for size in sizes[:: 1 if round_number % 2 else -1]:
                started = time.monotonic()
                await call(size)
                if round_number:
                    seconds[size].append(time.monotonic() - started)
                if not size.is_read:
                    await role.release(self._name(size, 0))
        for size in sizes:
            for number in range(size.num_requests):
                await role.release(self._name(size, number))
        return {size: median(own) for size, own in seconds.items()}
