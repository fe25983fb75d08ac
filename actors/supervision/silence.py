"""When a role that does not answer counts as dead: soon if it hangs, later if its link is down."""

from __future__ import annotations

import asyncio
import contextlib

from actors.settings import MAX_MISSES
from diffuspec.core.addresses import parse_address

_LINK_SECONDS = 60.0  # time without a link after which a role counts as dead; Ray says so earlier


class Silence:
    """Counts the checks of one role that were not answered in time.

    A check that was sent into a dead link arrives only when TCP tries again, which may take as long
    as the link was down. So misses without a link do not count, and have to be outweighed.
    """

    def __init__(self, address: str, seconds: float) -> None:
        """`address`: where the role listens; `seconds`: the time that each check takes."""
        self._address = address
        self._seconds = seconds
        self._num_misses = self._num_cut = 0

    def end(self) -> None:
        """Record an answer."""
        self._num_misses = self._num_cut = 0

    async def is_final(self) -> bool:
        """Record a check without an answer; return whether the role counts as dead."""
        if await _is_reachable(self._address, self._seconds):
            self._num_misses += 1
        else:
            self._num_cut += 1
        is_cut_off = self._num_cut * self._seconds > _LINK_SECONDS
        return is_cut_off or self._num_misses >= MAX_MISSES + self._num_cut

    def __str__(self) -> str:
        num_checks = self._num_misses + self._num_cut
        return f"it did not answer {num_checks} times in a row"


async def _is_reachable(address: str, seconds: float) -> bool:
    """Return whether a machine takes or refuses a connection; a hanging process's does."""
    host, port = parse_address("the address of a role", address)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
