"""Rotary angles that depend on the longest sequence of a forward are refused past their switch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.target import CausalTarget
from tests.support.models import (
    edit_json,
    make_longrope_model,
    save_tokenizer,
)

SaveTarget = Callable[[str], Path]
WEIGHTS = "model.safetensors"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def save_longrope(path: Path) -> Path:
    make_longrope_model().save_pretrained(path)
    save_tokenizer(path)
    return path


def test_length_dependent_angles_are_served_up_to_their_limit(tmp_path: Path) -> None:
    path = save_longrope(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'longrope' .* beyond 128 .* at most 128, got 129"):
        CausalTarget.load(TargetConfig(path=path, device="cpu", max_model_len=129))
    CausalTarget.load(TargetConfig(path=path, device="cpu", max_model_len=128)).close()


def test_fixed_angles_have_no_limit(tmp_path: Path) -> None:
    path = save_longrope(tmp_path)
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    edit_json(path / "config.json", rope_parameters={**rope, "short_factor": rope["long_factor"]})
    CausalTarget.load(TargetConfig(path=path, device="cpu")).close()
