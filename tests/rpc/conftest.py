"""The token of a test's servers and clients."""

import pytest

from diffuspec.rpc.security import Security, new_token


@pytest.fixture
def security() -> Security:
    return Security(new_token())
