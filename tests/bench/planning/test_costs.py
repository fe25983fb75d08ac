"""Costs of planned machines: files, curves and estimates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffuspec.bench.planning.costs import (
    SHIPPED,
    CallCosts,
    Curve,
    Figure,
    add_costs,
    read_costs,
    shipped_devices,
    write_costs,
)
from diffuspec.bench.planning.estimates import CARDS, KNOWN, estimate, find_sizes
from diffuspec.bench.planning.machines import CallSize
from diffuspec.core.errors import ConfigError

H200 = SHIPPED / "h200.json"


def figure(value: float) -> Figure:
    return Figure(value=value, origin="fitted")


def test_a_curve_goes_on_as_its_last_part_rises():
    curve = Curve(points=((1.0, 1.0), (3.0, 2.0), (5.0, 6.0)), origin="fitted")
    assert [curve.at(size) for size in (0, 2, 5, 7)] == [1.0, 1.5, 6.0, 10.0]


def test_a_call_costs_its_rows_its_requests_and_what_they_see():
    rows = Curve(points=((0.0, 1.0), (10.0, 2.0)), origin="fitted")
    costs = CallCosts(
        rows=rows, request=figure(0.5), context=figure(0.01), row_context=figure(0.001)
    )
    assert costs.seconds(CallSize(2, 10, 0, 100)) == pytest.approx(2 + 0.5 + 1 + 0.5)
    reads = costs.model_copy(update={"reading": figure(0.1)})
    assert reads.seconds(CallSize(1, 10, 4)) == pytest.approx(2 + 0.4 + 0.001 * 4 * 2)


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "costs.json"
    write_costs(path, read_costs(H200))
    assert read_costs(path) == read_costs(H200)


def test_a_file_keeps_the_other_models_of_its_device(tmp_path):
    path, costs = tmp_path / "costs.json", read_costs(H200)
    for name, model in costs.models.items():
        add_costs(path, costs.model_copy(update={"models": {name: model}}))
    assert read_costs(path) == costs
    add_costs(path, read_costs(SHIPPED / "cpu.json"))
    assert read_costs(path) == read_costs(SHIPPED / "cpu.json")


@pytest.mark.parametrize("device", shipped_devices())
def test_shipped_costs_are_sound(device):
    costs = read_costs(SHIPPED / f"{device}.json")
    assert costs.device == device
    assert all(model.source for model in costs.models.values())


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("memory_bytes", {"value": -1, "origin": "fitted"}, "memory_bytes.value must be 0 or more"),
        ("interference", {"value": 1, "origin": "guessed"}, "interference.origin"),
        ("modles", {}, "unknown key `modles`"),
    ],
)
def test_a_wrong_file_is_refused_by_its_key(tmp_path: Path, key: str, value: object, named: str):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(json.loads(H200.read_text()) | {key: value}))
    with pytest.raises(ConfigError, match=named):
        read_costs(path)


def test_estimates_are_near_what_was_measured():
    measured = read_costs(H200).models["Qwen2.5-32B"].verify
    assert measured is not None
    estimated = estimate(KNOWN["Qwen2.5-32B"], CARDS["h200"]).verify
    assert estimated is not None
    for rows in (1, 17, 64, 512):
        size = CallSize(1, rows)
        assert estimated.seconds(size) == pytest.approx(measured.seconds(size), rel=0.12)


def test_a_target_on_two_cards_takes_more_than_half_of_the_time():
    one, two = (estimate(KNOWN["Qwen2.5-32B"], CARDS["h100"], ranks) for ranks in (1, 2))
    assert one.verify is not None
    assert two.verify is not None
    assert 0.5 < two.verify.rows.at(1) / one.verify.rows.at(1) < 0.8


def test_sizes_come_from_a_configuration_and_names(tmp_path):
    config = {
        "num_attention_heads": 40,
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 27648,
        "vocab_size": 152064,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_sizes(str(tmp_path)) == KNOWN["Qwen2.5-32B"] == find_sizes("qwen2.5-32B-Instruct")
    assert find_sizes("a model") is None
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": 8}))
    with pytest.raises(ConfigError, match="num_experts cannot be estimated"):
        find_sizes(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no sizes of a decoder"):
        find_sizes(str(tmp_path))
