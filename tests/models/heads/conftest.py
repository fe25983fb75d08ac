"""A random target, and what heads read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diffuspec.core.config import TargetConfig
from diffuspec.models.heads.target_layers import TargetLayers, target_layers
from diffuspec.models.target import CausalTarget


@pytest.fixture(scope="module")
def target(target_path: Callable[[str], Path]) -> Iterator[CausalTarget]:
    config = TargetConfig(path=target_path("qwen2"), device="cpu", max_sequences=2)
    target = CausalTarget.load(config)
    yield target
    target.close()


@pytest.fixture(scope="module")
def layers(target: CausalTarget) -> TargetLayers:
    return target_layers(target, None)
