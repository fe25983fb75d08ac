"""Models of given sizes are drawn and timed, and the results are on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from diffuspec.bench.planning.costs import read_costs
from diffuspec.bench.planning.machines import CallSize
from diffuspec.bench.sizes import timing
from diffuspec.bench.sizes.models import CONFIGURATIONS, find_configuration
from diffuspec.bench.sizes.profile import kernel_table, kernels_of
from diffuspec.bench.sizes.run import Plan, run_sizes
from diffuspec.bench.sizes.timing import Times, measure_speeds
from diffuspec.core.errors import ConfigError, ModelLoadError
from diffuspec.models.loading.drawn_model import inspect_sizes
from diffuspec.models.loading.load import load_model

PLAN = Plan((20, 40), (2, 5), (3,), several_prefix=30, several_drafted=2, seconds=0.0)
Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def small_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing._COPIED, "cpu", 1 << 16)
    monkeypatch.setitem(timing._SIDE, "cpu", 32)


def test_calls_of_a_pair_are_timed_at_every_size(save_sizes: Save, tmp_path: Path) -> None:
    target = save_sizes("target")
    drafter = save_sizes("drafter", model_type="Dream", mask_token_id=119)
    console = Console(record=True, width=120, quiet=True)
    assert run_sizes(target, drafter, tmp_path, console, profiles=True, plan=PLAN) == 0
    data = json.loads((tmp_path / "sizes.json").read_text())
    calls = [
        (one["kind"], one["num_requests"], one["num_prefix_tokens"], one["num_drafted"])
        for one in data["calls"]
    ]
    behind = [
        call
        for prefix in (20, 40)
        for call in (
            ("prompt", 1, prefix, 0),
            *(("verify", 1, prefix, drafted) for drafted in (0, 2, 5)),
            ("sampled", 1, prefix, 2),
            *(("draft", 1, prefix, drafted) for drafted in (2, 5)),
            ("refresh", 1, prefix, 2),
        )
    ]
    together = [("verify", 3, 30, 0), ("verify", 3, 30, 2), ("draft", 3, 30, 2)]
    assert calls == behind + together
    assert all(0 < one["least_seconds"] <= one["seconds"] for one in data["calls"])
    assert len(data["speed_ups"]) == 4 and data["peak_bytes"]["loading"] > 0
    assert data["target"]["step_bytes"] == 4 * (data["target"]["weights"] - 120 * 32)
    text = (tmp_path / "sizes.md").read_text()
    for expected in ("draft with refresh", "accepts 6.99", "Kernels of a draft", "Peak memory"):
        assert expected in text


def test_costs_are_those_that_a_plan_reads(save_sizes: Save, tmp_path: Path) -> None:
    run_sizes(save_sizes("target"), None, tmp_path, Console(quiet=True), plan=PLAN)
    costs = read_costs(tmp_path / "costs.json")
    own = costs.find("target")
    assert own is not None and own.verify is not None and own.draft is None
    assert [rows for rows, _ in own.verify.rows.points] == [1, 3, 6, 20, 40]
    assert own.verify.seconds(CallSize(2, 2, 0, 100)) > 0


def test_prefixes_beyond_a_models_positions_are_left_out(save_sizes: Save, tmp_path: Path) -> None:
    target = save_sizes("target", max_position_embeddings=100)
    run_sizes(target, None, tmp_path, Console(quiet=True), plan=PLAN)
    data = json.loads((tmp_path / "sizes.json").read_text())
    assert {one["num_prefix_tokens"] for one in data["calls"]} == {20}
    target = save_sizes("target", max_position_embeddings=50)
    with pytest.raises(ConfigError, match="target has 50 positions: 84 are needed"):
        run_sizes(target, None, tmp_path, Console(quiet=True), plan=PLAN)


def test_a_drawn_model_has_finite_logits_and_one_matrix_where_it_is_tied(save_sizes: Save) -> None:
    checkpoint = inspect_sizes(save_sizes("tied", tie_word_embeddings=True))
    runner = load_model(checkpoint, device="cpu", max_len=40).runner
    table = runner.cache.acquire("a", torch.arange(3, dtype=torch.int32).numpy())
    assert runner.feed(table, torch.arange(3, dtype=torch.int32).numpy(), 0) == 3
    untied = inspect_sizes(save_sizes("untied"))
    assert untied.num_weights - checkpoint.num_weights == 120 * 32


@pytest.mark.parametrize(
    ("name", "billions"), [("SmolLM2-135M", 0.135), ("fast_dllm_v2_1.5b", 1.54), ("Dream-7B", 7.62)]
)
def test_shipped_configurations_have_the_published_sizes(name: str, billions: float) -> None:
    found = inspect_sizes(find_configuration(Path(name))).num_weights
    assert found / 1e9 == pytest.approx(billions, rel=0.01)
    assert {path.stem for path in CONFIGURATIONS.glob("*.json")} >= {"Qwen2.5-32B"}


def test_a_configuration_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing is neither .* along: Dream-7B, Fast_dLLM"):
        find_configuration(Path("nothing"))
    (tmp_path / "config.json").write_text("{}")
    assert find_configuration(tmp_path) == tmp_path / "config.json"
    with pytest.raises(ModelLoadError, match="no model_type"):
        inspect_sizes(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ModelLoadError, match="is no configuration of a model"):
        inspect_sizes(tmp_path / "config.json")


def test_speeds_and_times_are_of_several_calls() -> None:
    speeds = measure_speeds(torch.device("cpu"), torch.float32)
    assert min(speeds) > 0
    seen = list[int]()
    times = Times.of((lambda n=n: seen.append(n) for n in range(9)), 0.0, least=4)  # type: ignore[misc]
    assert seen == [0, 1, 2, 3, 4] and times.least <= times.median


def test_kernels_are_listed_by_time() -> None:
    matrix = torch.ones(8, 8)
    kernels = kernels_of(lambda: matrix @ matrix, torch.device("cpu"))
    assert "aten::mm" in {kernel.name for kernel in kernels}
    assert kernels == sorted(kernels, key=lambda kernel: -kernel.seconds)
    assert kernel_table("Kernels", kernels).cells[-1][0] == "all"
