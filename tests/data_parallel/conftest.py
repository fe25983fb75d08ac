"""Two engine processes over the embedded pair, and one engine to compare them with."""

from collections.abc import Iterator

import pytest

from diffuspec.data_parallel import member, process
from diffuspec.data_parallel.engine import DataParallelEngine
from diffuspec.engine.engine import Engine
from tests.support.engines import short_tiny_config
from tests.support.forked import forked


@pytest.fixture(scope="package", autouse=True)
def forked_processes() -> Iterator[None]:
    """Fork the processes, for to import torch takes seconds, and replace each soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member, "_MAX_PAUSE_SECONDS", 0.25)
        patch.setattr(process, "PYTHON", tuple(forked()))
        yield


@pytest.fixture(scope="package")
def engines(forked_processes: None) -> Iterator[DataParallelEngine]:
    config = short_tiny_config().model_copy(update={"data_parallel_size": 2})
    with DataParallelEngine.from_config(config, num_threads=1) as engines:
        yield engines


@pytest.fixture(scope="package")
def one() -> Iterator[Engine]:
    with Engine.from_config(short_tiny_config()) as engine:
        yield engine
