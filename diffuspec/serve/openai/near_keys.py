"""Keys that are nearly a known one, and so misspelled rather than new."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable

_LIKENESS = 0.8  # least ratio of difflib for a near key
_MAX_READ = 64  # characters of a key that are compared


def near_key(given: str, known: Iterable[str]) -> str | None:
    """Return the known key that `given` is like, apart from its case, `-` and `_`; or None."""
    return _near(given[:_MAX_READ], frozenset(known))


def plain(key: str) -> str:
    """Return a key without what clients write differently: its case, `-` and `_`."""
    return key.lower().replace("_", "").replace("-", "")


@functools.lru_cache(maxsize=1024)  # a client sends the same keys again and again
def _near(given: str, known: frozenset[str]) -> str | None:
    names = {plain(name): name for name in sorted(known)}
    alike = difflib.get_close_matches(plain(given), names, n=1, cutoff=_LIKENESS)
    return names[alike[0]] if alike else None
