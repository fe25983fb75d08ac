"""Tests of kernels leave the level of the processor's products as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diffuspec.models.kernels import levels


@pytest.fixture(autouse=True)
def own_level_afterwards() -> Iterator[None]:
    level = levels.level()
    yield
    levels.use_level(level)
