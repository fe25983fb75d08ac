"""What commands need beyond the library, and how a user without it is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from diffuspec.core.errors import ConfigError


@contextlib.contextmanager
def needs_ray(what: str) -> Iterator[None]:
    """Import what needs Ray within this context. Raises ConfigError if Ray is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError(f"{what} needs Ray: pip install 'diffuspec[ray]'") from None
