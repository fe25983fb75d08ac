"""Costs measured here: a target's verifications and a drafter's drafts by size, for plans.

Calls go through the roles' interfaces, with no request running. Sizes take turns over several
rounds, so that a slowdown of the machine affects all of them; the least of each counts, since other
programs only add to it. What the coordinator adds to a step is measured by decoding without drafts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from pathlib import Path
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
from diffuspec.bench.planning.estimates import find_sizes
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest, TokenIds, VerifyRequest
from diffuspec.engine.engine import Engine

_SHORT, _LONG = 64, 448  # tokens of prefixes
_ROWS = (1, 2, 4, 8, 16, 32, 64)  # of one request
_POSITIONS = (1, 4, 8, 16, 32)
_MANY = 4  # requests
_ROUNDS = 20
_DECODED = 48  # tokens


class _Size(NamedTuple):
    num_requests: int
    num_rows: int  # of each request
    num_prefix_tokens: int = _SHORT
    is_read: bool = True  # whether the prefix is cached

    @property
    def total(self) -> int:
        return self.num_requests * self.num_rows


def costs_of(engine: Engine, name: str, source: str, device: str) -> DeviceCosts:
    """Measure an engine's calls, and return them as those of a model `name` on a device."""
    costs, interference = asyncio.run(_measure(engine, source))
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
    verify = _costs(await calls.verifications(), _ROWS)
    if engine.drafter is not None:
        seconds = await calls.drafts(engine.drafter)
        draft = _costs(seconds, _POSITIONS)
        unread = seconds[_Size(1, 1, _LONG, is_read=False)] - seconds[_Size(1, 1, _LONG)]
        draft = draft.model_copy(update={"reading": _figure(unread / _LONG)})
        interference = await calls.interference(engine.drafter, verify, draft)
    path = engine.config.target.path
    sizes = find_sizes(str(path)) if path.is_dir() else None
    width = torch.finfo(engine.runners[0].cache.dtype).bits / 16  # over that of estimates
    costs = ModelCosts(
        source=source,
        verify=_with_overhead(verify, await _overhead(engine, verify)),
        draft=draft,
        weight_bytes=_figure(sum(one.stat().st_size for one in path.parent.glob(_weights(path)))),
        cache_bytes=_figure(width * sizes.cache_bytes if sizes else 0.0),
    )
    return costs, interference


def _weights(path: Path) -> str:
    """Return the pattern of the files of a model's weights, below its folder."""
    return f"{path.name}/*.safetensors" if path.is_dir() else path.name


def _figure(value: float) -> Figure:
    return Figure(value=max(value, 0.0), origin="measured here")


def _costs(seconds: Mapping[_Size, float], sizes: tuple[int, ...]) -> CallCosts:
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
    return CallCosts(
        rows=curve,
        request=_figure(sum(several) / len(several)),
        context=_figure(seen / (_LONG - _SHORT) - row_context),
        row_context=_figure(row_context),
    )


def _with_overhead(costs: CallCosts, overhead: float) -> CallCosts:
    """Return the costs with what the coordinator takes for each request of a step."""
    points = tuple((rows, seconds + overhead) for rows, seconds in costs.rows.points)
    rows = costs.rows.model_copy(update={"points": points})
    return costs.model_copy(
        update={"rows": rows, "request": _figure(costs.request.value + overhead)}
    )


async def _overhead(engine: Engine, costs: CallCosts) -> float:
    """Return the seconds of a plain step outside the verification."""
    prompt = _prompt(engine, _SHORT, 0).tolist()
    sampling = SamplingParams(max_tokens=_DECODED, ignore_eos=True)
    paces = []
    async with engine:
        for _ in range(_ROUNDS):
            times = [time.monotonic() async for _ in engine.stream(prompt, sampling, PLAIN)]
            paces += [after - before for before, after in pairwise(times)]
    return max(min(paces) - costs.rows.at(1), 0.0)


def _prompt(engine: Engine, size: int, number: int) -> TokenIds:
    ids = (7919 * np.arange(1 + number, 1 + number + size)) % engine.info.vocab_size
    return np.asarray(ids, np.int32)


class _Calls:
    """Timed calls of an engine's roles."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0  # of the next prefix that nobody has read

    async def verifications(self) -> dict[_Size, float]:
        """Return the least seconds of verifications."""
        sizes = [_Size(1, rows) for rows in _ROWS]
        sizes += [_Size(_MANY, 1), _Size(_MANY, 8), _Size(1, 1, _LONG), _Size(1, _ROWS[-1], _LONG)]
        verifier: Verifier = self._engine.verifier
        return await self._least(sizes, lambda size: verifier.verify(self._trees(size)), verifier)

    def _trees(self, size: _Size) -> list[VerifyRequest]:
        tree = chain([1] * (size.num_rows - 1))
        prompt = _prompt(self._engine, size.num_prefix_tokens, 0)
        return [
            VerifyRequest(self._name(size, n), prompt, len(prompt), tree, SamplingParams())
            for n in range(size.num_requests)
        ]

    async def drafts(self, drafter: Drafter) -> dict[_Size, float]:
        """Return the least seconds of draft calls."""
        sizes = [_Size(1, positions) for positions in _POSITIONS]
        sizes += [_Size(_MANY, 1), _Size(_MANY, 8), _Size(1, 1, _LONG)]
        sizes += [_Size(1, _POSITIONS[-1], _LONG), _Size(1, 1, _LONG, is_read=False)]
        return await self._least(sizes, lambda size: drafter.draft(self._wanted(size)), drafter)

    def _wanted(self, size: _Size) -> list[DraftRequest]:
        self._number += not size.is_read
        usual, number = SpeculationParams(), 0 if size.is_read else self._number
        prompt = _prompt(self._engine, size.num_prefix_tokens, number)
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
        slower = [min(times[one]) / alone[0], min(times[drafted]) / alone[1]]
        await self._engine.verifier.release(trees[0].request_id)
        await drafter.release(wanted[0].request_id)
        return min(max(sum(slower) / 2 - 1, 0.0), 1.0)

    async def _least(
        self,
        sizes: list[_Size],
        call: Callable[[_Size], Awaitable[Any]],
        role: Verifier | Drafter,
    ) -> dict[_Size, float]:
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
        return {size: min(own) for size, own in seconds.items()}
