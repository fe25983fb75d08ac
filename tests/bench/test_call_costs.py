"""Costs of a real engine's calls: what is measured, and into which file it goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diffuspec.bench import call_costs
from diffuspec.bench.planning.costs import CallCosts, DeviceCosts, read_costs, write_costs
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config


@pytest.fixture
def costs(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> DeviceCosts:
    for name, value in {"_ROUNDS": 1, "_LONG": 96, "_DECODED": 8}.items():
        monkeypatch.setattr(call_costs, name, value)
    target, drafter = pair
    config = parse_config(
        {"target": {"path": target, "max_sequences": 8}, "drafter": {"path": drafter}}
    )
    with Engine.from_config(config) as engine:
        return asyncio.run(call_costs.measure_costs(engine, "pair", "a test", "cpu"))


@pytest.mark.no_cover
def test_both_roles_are_measured_and_a_plan_can_read_it(costs: DeviceCosts, tmp_path: Path):
    model = costs.models["pair"]
    for calls in (model.verify, model.draft):
        assert isinstance(calls, CallCosts)
        assert set(calls.origins) == {"measured here"} and calls.reading is not None
        seconds = [seconds for _, seconds in calls.rows.points]
        assert seconds == sorted(seconds)
    assert model.cache_bytes.value > 0 and model.weight_bytes.value > 0
    assert 0 <= costs.interference.value <= 1
    write_costs(tmp_path / "costs.json", costs)
    assert read_costs(tmp_path / "costs.json") == costs
