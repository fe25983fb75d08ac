"""Addresses of servers: HOST:PORT, an IPv6 host in brackets, or unix:PATH for a Unix socket."""

from __future__ import annotations

import re

from diffuspec.core.errors import ConfigError

UNIX_SCHEME = "unix:"
MAX_PORT = 65_535

_HOST_PORT = re.compile(r"(?P<host>[^\s:/\[\]]+|\[[0-9a-fA-F:.%]+\]):(?P<port>[0-9]{1,5})")


def parse_address(option: str, address: str) -> tuple[str, int]:
    """Return host and port. Raises ConfigError for an address that can never be reached."""
    found = _host_and_port(address)
    if found is None or found[1] == 0:
        raise ConfigError(f"{option} must be HOST:PORT, got {address!r:.80}")
    return found


def parse_listen_address(option: str, address: str) -> tuple[str, int]:
    """Return host and port (0: any); a Unix socket has no port. Raises ConfigError."""
    if address.startswith(UNIX_SCHEME):
        if address == UNIX_SCHEME:
            raise ConfigError(f"{option} unix:PATH needs a path")
        return address, 0
    found = _host_and_port(address)
    if found is None:
        raise ConfigError(f"{option} must be HOST:PORT or unix:PATH, got {address!r:.80}")
    return found


def _host_and_port(address: str) -> tuple[str, int] | None:
    found = _HOST_PORT.fullmatch(address)
    if found is None or int(found["port"]) > MAX_PORT:
        return None
    return found["host"].strip("[]"), int(found["port"])
