"""The token of a test's servers and clients."""

from __future__ import annotations

import pytest

from diffuspec.rpc.security import Security, new_token


@pytest.fixture
def security() -> Security:
    return Security(new_token())
