"""The other process of tests with two ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.models.tensor_parallel.processes import Follower


@pytest.fixture(scope="module")
def follower() -> Iterator[Follower]:
    follower = Follower()
    yield follower
    follower.close()
