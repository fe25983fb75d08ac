"""Memory of this process."""

from __future__ import annotations

import ctypes


def release_freed() -> None:
    """Return freed memory to the system that the C library would keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
