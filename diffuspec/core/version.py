"""The version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Return the installed version of diffuspec, or "0+checkout" if it is not installed."""
    try:
        return version("diffuspec")
    except PackageNotFoundError:
        return "0+checkout"
