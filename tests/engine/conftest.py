"""One engine over random checkpoints for all tests of a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diffuspec.engine.engine import Engine
from tests.support.engines import make_engine


@pytest.fixture(scope="module")
def engine(target_path: Callable[[str], Path], drafter_path: Path) -> Iterator[Engine]:
    with make_engine(target_path("qwen2"), drafter_path) as engine:
        yield engine
