"""TCP ports of this machine that are reserved for one use."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

_PORTS = range(20_000, 30_000)  # neither Linux nor Ray assigns these to connections and workers


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free port that no other process is given meanwhile.

    The UDP port of the same number is held, so the TCP port can be opened and closed repeatedly.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket(type=socket.SOCK_DGRAM) as held, socket.socket() as listener:
            try:
                held.bind(("", port))
                listener.bind(("", port))
            except OSError:
                continue
            listener.close()
            yield port
            return
    raise OSError(f"all ports from {_PORTS[0]} to {_PORTS[-1]} are in use")
