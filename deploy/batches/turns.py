"""Turns: many rows are in flight at a time, or one row alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Lets attempts at rows begin, many at a time, or one alone.

    A row that must be alone waits until no row is in flight; no other row begins meanwhile.
    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._num_in_flight = 0
        self._num_alone = 0  # rows that are alone, or wait for it
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the context."""
        async with self._changed:
            self._num_alone += alone
            try:
                await self._changed.wait_for(lambda: self._may_begin(alone=alone))
                self._num_in_flight += 1
            except BaseException:
                self._num_alone -= alone
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            self._num_in_flight -= 1
            self._num_alone -= alone
            await asyncio.shield(self._tell())

    def _may_begin(self, *, alone: bool) -> bool:
        return not (self._num_in_flight if alone else self._num_alone)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
