"""Allowance: the limits of an API key, and its present use."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Iterator

from pydantic import Field

from diffuspec.core.validation import Section
from diffuspec.serve.openai.errors import HttpError


class ApiKey(Section):
    """One key in the file."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="Hash of the key, in hexadecimal.")
    max_requests: int | None = Field(
        None,
        ge=1,
        description="Maximum number of concurrent requests with this key, and of answers (prompts "
        "times n) that they generate concurrently; null: no limit for the key.",
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Maximum number of tokens per minute, of prompts and answers; null: no limit.",
    )
    cache_group: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Keys with the same cache_group share cached beginnings of prompts; null: the "
        "key shares them with no other key.",
    )


class Allowance:
    """The present use of one key. Times are of time.monotonic()."""

    def __init__(self, name: str, key: ApiKey) -> None:
        self.name = name
        self.key = key
        self._num_running = 0
        self._answers = None if key.max_requests is None else asyncio.Semaphore(key.max_requests)
        self._tokens = float(key.tokens_per_minute or 0)  # tokens left; negative when overdrawn
        self._filled_at = time.monotonic()

    def cache_salt(self, given: str | None) -> str:
        """Return the salt of a request with this key, and with the salt that its client gave.

        It is a hash, so that no client can give the salt of another key.
        """
        group = self.key.cache_group
        owner = ["key", self.name] if group is None else ["group", group]
        text = json.dumps([*owner, given])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @contextlib.contextmanager
    def one_request(self) -> Iterator[None]:
        """Count a request while it runs. Raises HttpError (429) if the key is used up."""
        limit = self.key.max_requests
        if limit is not None and self._num_running >= limit:
            raise _too_many(f"this key may have {limit} requests at a time", 1)
        self._check_budget()
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    @contextlib.asynccontextmanager
    async def one_answer(self) -> AsyncIterator[None]:
        """Wait for a place among the key's answers, and hold it while the context is open.

        Answers get places in the order in which they came.
        """
        async with self._answers or contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def reserve(self, num_tokens: int) -> Iterator[Reservation]:
        """Take tokens from the budget while the context is open; afterwards, those that were used.

        The budget may be overdrawn. Raises HttpError (429) if nothing is left of it.
        """
        self._check_budget()
        self._tokens -= num_tokens
        reservation = Reservation(self, num_tokens)
        try:
            yield reservation
        finally:
            self._tokens += max(num_tokens - reservation.num_used, 0)

    def charge(self, num_tokens: int) -> None:
        """Take tokens from the budget, which may be overdrawn."""
        self._tokens -= num_tokens

    def _check_budget(self) -> None:
        if (seconds := self._seconds_to_wait()) > 0:
            limit = self.key.tokens_per_minute
            raise _too_many(f"this key may use {limit} tokens a minute", seconds)

    def _seconds_to_wait(self) -> int:
        """Return the seconds until the budget is positive again; 0 if it is."""
        rate = (self.key.tokens_per_minute or 0) / 60
        if not rate:
            return 0
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._filled_at) * rate, rate * 60)
        self._filled_at = now
        return 0 if self._tokens > 0 else math.floor(-self._tokens / rate) + 1


class Reservation:
    """Tokens reserved for a request, and the number that it has used."""

    def __init__(self, allowance: Allowance, num_reserved: int) -> None:
        self.num_used = 0
        self._allowance = allowance
        self._num_reserved = num_reserved

    def use(self, num_tokens: int) -> None:
        """Count used tokens; those beyond the reserved ones are charged at once."""
        num_beyond = max(self.num_used + num_tokens - self._num_reserved, 0)
        self._allowance.charge(min(num_beyond, num_tokens))
        self.num_used += num_tokens


def _too_many(message: str, seconds: int) -> HttpError:
    return HttpError(
        429,
        f"{message}; try again later",
        "rate_limit_exceeded",
        kind="rate_limit_error",
        headers={"retry-after": str(seconds)},
    )
