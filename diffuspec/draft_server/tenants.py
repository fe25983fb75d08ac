"""Tenants: how the drafter's time is shared when engines want more than there is."""

from __future__ import annotations

import time
from collections.abc import Mapping

_FADES_IN_SECONDS = 10.0  # half-life of a tenant's recorded use


class Tenant:
    """One tenant: its share, and its recent use of the drafter."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._used = 0.0  # seconds used, at the time _since
        self._since = time.monotonic()

    def charge(self, seconds: float) -> None:
        """Account for seconds of pre-drafting."""
        self._used, self._since = self._faded() + seconds, time.monotonic()

    @property
    def weight(self) -> float:
        """Its share, divided by its recent use."""
        return self._share / (0.1 + self._faded())

    def _faded(self) -> float:
        return float(self._used * 0.5 ** ((time.monotonic() - self._since) / _FADES_IN_SECONDS))


class Tenants:
    """All tenants, by name. Those that the configuration does not name have a share of 1 each."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._by_name = {name: Tenant(share) for name, share in shares.items()}

    def find(self, name: str) -> Tenant:
        """Return a tenant; an unknown name creates one."""
        if name not in self._by_name and len(self._by_name) >= 1024:
            return Tenant(1.0)
        return self._by_name.setdefault(name, Tenant(1.0))
