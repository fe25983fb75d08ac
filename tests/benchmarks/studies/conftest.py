"""Fixtures of the studies: the pair of models of the tests of the benchmark."""

from tests.bench.conftest import pair

__all__ = ["pair"]
