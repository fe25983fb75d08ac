"""Addresses of servers: HOST:PORT, an IPv6 host in brackets, or unix:PATH for a Unix socket."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from diffuspec.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
UNIX_SCHEME = "unix:"
MAX_PORT = 65_535

_REASONS = {  # why an address cannot be bound, and what to do
    errno.EADDRINUSE: "another program listens there: stop it, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "this user may not listen there: choose a port above 1023",
}
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


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host, as with a Unix socket, "unix:PATH"."""
    if host == "localhost" or host.startswith(UNIX_SCHEME):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Return a TCP socket at the address; it listens if a backlog is given. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise ConfigError(f"host {host!r:.80} is not an address here: {reason}") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if backlog is not None:
            bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise bind_error(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", error) from error
    return bound


def bind_error(address: str, error: OSError) -> ConfigError:
    """Return the error for an address that cannot be bound: the reason, and what to do."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return ConfigError(f"cannot serve on {address}: {reason}")
