"""Coverage of what is imported, and of nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest
from coverage import Coverage

_MEASURED = ("diffuspec", "actors", "deploy")


@contextlib.contextmanager
def measured_imports(coverage: Coverage | None) -> Iterator[None]:
    """In this context, measure only the modules of the product, while they are imported."""
    if coverage is None:
        yield
        return
    execute, depth = SourceFileLoader.exec_module, 0

    def measure(loader: SourceFileLoader, module: ModuleType) -> None:
        nonlocal depth
        is_measured = module.__name__.partition(".")[0] in _MEASURED
        if is_measured and not depth:
            coverage.start()
        depth += is_measured
        try:
            execute(loader, module)
        finally:
            depth -= is_measured
            if is_measured and not depth:
                coverage.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceFileLoader, "exec_module", measure)
        coverage.stop()
        try:
            yield
        finally:
            coverage.start()
