"""Hooks: undocumented names of an engine that a plug-in relies on, checked before use."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection
from typing import Any


def has_hook(
    module: str,
    name: str,
    parameters: Collection[str] = (),
    load: Callable[[str], Any] = importlib.import_module,
) -> bool:
    """Return whether a module can be loaded and has a callable of this name with these parameters.

    The parameters of a dataclass are its fields.
    """
    try:
        found = load(module)
        for part in name.split("."):
            found = getattr(found, part)
        return not parameters or {*parameters} <= {*inspect.signature(found).parameters}
    except (ImportError, AttributeError, TypeError, ValueError):
        return False
