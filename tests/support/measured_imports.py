"""Coverage of what is imported, and of nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest
from coverage import Coverage

_MEASURED = ("diffuspec", "actors", "deploy")


@contextlib.contextmanager
def measured_imports(coverage: Coverage | None) -> Iterator[None]:
    """In this context, measure only the modules of the product, while they are imported.

    What they import is traced as well: of a module within which coverage stops, it misses the rest.
    """
    if coverage is None:
        yield
        return
    execute, depth = SourceFileLoader.exec_module, 0

    def measure(loader: SourceFileLoader, module: ModuleType) -> None:
        nonlocal depth
        is_measured = _is_measured(module.__name__)
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
            _clear_caches()
            coverage.start()


def _is_measured(module: str) -> bool:
    return module.partition(".")[0] in _MEASURED


def _clear_caches() -> None:
    """Forget what functions have returned unmeasured, so that they run again."""
    for module in [one for name, one in sys.modules.items() if _is_measured(name)]:
        for function in [*vars(module).values()]:
            if hasattr(function, "cache_clear"):
                function.cache_clear()
