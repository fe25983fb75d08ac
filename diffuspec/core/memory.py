"""Memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_M_ARENA_MAX, _NUM_HEAPS = -8, 2  # M_ARENA_MAX of malloc.h, and its value


def release_freed() -> None:
    """Return to the system the freed memory that the C library keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def loading_to_stay() -> Iterator[None]:
    """Load, without garbage collections, what stays until this process ends.

    torch and transformers have half a million objects. Collections that walk through them take a
    fifth of the time of their import, and 0.2 s each afterwards. Later collections leave out what
    was there at the end of the first call, since what further ones replace has to be freed.
    """
    was_enabled, is_first = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        if is_first:
            gc.freeze()
        if was_enabled:
            gc.enable()


def share_heaps() -> None:
    """Let all threads of this process share two heaps of the C library.

    By default glibc gives each thread a heap, which keeps its largest size: a service with dozens
    of threads grows for hours. Call it before threads start. Does nothing with other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _NUM_HEAPS)
