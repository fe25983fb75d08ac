"""The costs that explain measured calls, for `diffuspec plan`.

The least of each call counts, since other programs only add to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffuspec.bench.call_costs import memory_bytes
from diffuspec.bench.planning.costs import (
    CallCosts,
    Curve,
    DeviceCosts,
    Figure,
    ModelCosts,
)
from diffuspec.bench.sizes.calls import Timed
from diffuspec.bench.sizes.models import Sized
from diffuspec.bench.sizes.results import Results
from diffuspec.core.drafter_config import REFRESH_TOKENS

_INTERFERENCE = 0.9  # assumed for two roles on one device, not measured


def costs_of(results: Results) -> DeviceCosts:
    """Return the measured calls of a target, and of a drafter, as costs."""
    source = f"{results.machine.command_line}, {results.machine.device}, {results.machine.date}"
    target, drafter = results.target, results.drafter
    steps = [row for row in results.rows if row.kind == "verify"]
    prompts = [row for row in results.rows if row.kind == "prompt"]
    models = {target.name: _of_model(target, source, verify=_of_calls(steps, prompts))}
    if drafter is not None:
        costs = _of_calls([row for row in results.rows if row.kind == "draft"], [])
        if results.refresh_every is not None:
            refresh = {"refresh_every": results.refresh_every, "refresh_tokens": REFRESH_TOKENS}
            costs = costs.model_copy(update=refresh)
        models[drafter.name] = _of_model(drafter, source, draft=costs)
    return DeviceCosts(
        device=results.machine.device,
        memory_bytes=_figure(memory_bytes(target.runner.device.type)),
        interference=Figure(value=_INTERFERENCE, origin="estimated"),
        models=models,
    )


def _of_model(
    model: Sized, source: str, verify: CallCosts | None = None, draft: CallCosts | None = None
) -> ModelCosts:
    return ModelCosts(
        source=source,
        verify=verify,
        draft=draft,
        weight_bytes=_figure(model.checkpoint.weight_bytes(model.backend.dtype)),
        cache_bytes=_figure(model.cache_bytes),
    )


def _of_calls(calls: Sequence[Timed], prompts: Sequence[Timed]) -> CallCosts:
    """Return the costs that explain calls of several sizes. Curves are made to rise."""
    single = [call for call in calls if call.num_requests == 1]
    near = min(call.num_prefix_tokens for call in single)
    far = max(call.num_prefix_tokens for call in single)
    short = _by_rows(call for call in single if call.num_prefix_tokens == near)
    long = _by_rows(call for call in single if call.num_prefix_tokens == far)
    curve = _rising([*short, *_by_rows(prompts)])
    (few, _), (many, _) = short[0], short[-1]
    distance = max(far - near, 1)
    seen = (long[0][1] - short[0][1]) / distance
    of_many = (long[-1][1] - short[-1][1]) / distance
    row_context = max(of_many - seen, 0.0) / max(many - few, 1)
    context = max(seen - few * row_context, 0.0)
    several = [
        call.least_seconds
        - curve.at(call.num_requests * call.num_rows)
        - (context + call.num_rows * row_context)
        * (call.num_requests * call.num_prefix_tokens - near)
        for call in calls
        if call.num_requests > 1
    ]
    num_more = sum(call.num_requests - 1 for call in calls)
    return CallCosts(
        rows=curve,
        request=_figure(sum(several) / max(num_more, 1)),
        context=_figure(context),
        row_context=_figure(row_context),
    )


def _by_rows(calls: Iterable[Timed]) -> list[tuple[int, float]]:
    return sorted((call.num_rows, call.least_seconds) for call in calls)


def _rising(points: Sequence[tuple[int, float]]) -> Curve:
    highest, rising = 0.0, list[tuple[float, float]]()
    for size, seconds in points:
        highest = max(highest, seconds)
        if not rising or size > rising[-1][0]:
            rising.append((float(size), highest))
    if len(rising) == 1:
        rising.append((rising[0][0] + 1, highest))
    return Curve(points=tuple(rising), origin="measured here")


def _figure(value: float) -> Figure:
    return Figure(value=max(value, 0.0), origin="measured here")
