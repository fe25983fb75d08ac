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
    """In this context, measure only the modules of the product, while they are imported."""
    if coverage is None:
        yield
        return
    execute, is_on = SourceFileLoader.exec_module, False

    def switch(on: bool) -> bool:
        """Begin or end measuring; return whether it was on."""
        nonlocal is_on
        was_on, is_on = is_on, on
        if on and not was_on:
            coverage.start()
        elif was_on and not on:
            coverage.stop()
        return was_on

    def measure(loader: SourceFileLoader, module: ModuleType) -> None:
        was_on = switch(_is_measured(module.__name__))
        try:
            execute(loader, module)
        finally:
            switch(was_on)

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
