"""Memory of this process."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX, _NUM_HEAPS = -8, 2  # M_ARENA_MAX of malloc.h, and its value


def release_freed() -> None:
    """Return to the system the freed memory that the C library keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_heaps() -> None:
    """Let all threads of this process share two heaps of the C library.

    By default glibc gives each thread a heap, which keeps its largest size: a service with dozens
    of threads grows for hours. Call it before threads start. Does nothing with other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _NUM_HEAPS)
