"""The open connections of a server, by the client's address."""

from __future__ import annotations

import ipaddress
from collections import Counter

_BITS_OF_A_CLIENT = 64  # prefix of an IPv6 address within which a client chooses


class Connections:
    """Counts connections by address; loopback is not limited, nor is a Unix socket.

    An IPv6 client is its network of 64 bits.
    """

    def __init__(self, max_per_address: int) -> None:
        self._max_per_address = max_per_address
        self._numbers: Counter[str] = Counter()

    def add(self, address: str) -> bool:
        """Count one more connection of an address until `remove`; return False beyond the limit."""
        client = _client(address)
        if client is not None:
            if self._numbers[client] >= self._max_per_address:
                return False
            self._numbers[client] += 1
        return True

    def remove(self, address: str) -> None:
        """Forget a connection that was added."""
        if (client := _client(address)) is not None:
            self._numbers[client] -= 1
            if not self._numbers[client]:
                del self._numbers[client]


def _client(address: str) -> str | None:
    """Return the client of an address; None if it is not limited."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket has no address
        return None
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_loopback:
        return None
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _BITS_OF_A_CLIENT), strict=False))
