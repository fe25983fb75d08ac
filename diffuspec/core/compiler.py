"""Keeps torch's compiler out of a process that compiles nothing with it.

transformers imports `torch._dynamo`, which takes as long as torch itself, to mark functions that it
must not trace.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_TRACING = f"{_COMPILER}._trace_wrapped_higher_order_op"


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Let modules mark functions for torch's compiler without importing it.

    The marks are lost, so transformers' functions cannot be compiled afterwards. Whatever else a
    module needs of the compiler imports it.
    """
    if _COMPILER in sys.modules:
        yield
        return
    modules = {name: _StandIn(name) for name in (_COMPILER, _TRACING)}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _StandIn(ModuleType):
    """Has what is used while modules are imported; anything else is the real module's."""

    def __getattr__(self, name: str) -> Any:
        if name in _MARKS:
            return _MARKS[name]
        is_package = name == "__path__" and self.__name__ == _COMPILER
        if name.startswith("__") and not is_package:  # inspect asks all modules for such names
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _real(name: str) -> ModuleType:
    for stand_in in (_COMPILER, _TRACING):
        if isinstance(sys.modules.get(stand_in), _StandIn):
            del sys.modules[stand_in]
    return importlib.import_module(name)


def _unmarked(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    """Return a function as it is, or a decorator that does so."""
    return _unmarked if function is None else function


def _masking(*arguments: object) -> Any:
    """Return the mode in which transformers computes masks, which needs the compiler."""
    return _real(_TRACING).TransformGetItemToIndex(*arguments)


_MARKS: dict[str, Callable[..., Any]] = {
    "allow_in_graph": _unmarked,
    "assume_constant_result": _unmarked,
    "disable": _unmarked,
    "TransformGetItemToIndex": _masking,
}
