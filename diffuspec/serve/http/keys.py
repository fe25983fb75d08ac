"""API keys: who may call, how many requests at a time, and how many tokens per minute.

A file maps names to keys, which are stored only as hashes:

    alice:
      sha256: "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
      max_requests: 8
      tokens_per_minute: 20000

It is read again when it changes. Keys are random, so a plain hash keeps them secret.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import Section, read_yaml, validate
from diffuspec.rpc.limits import DEFAULT_LIMITS
from diffuspec.serve.openai.errors import HttpError

logger = logging.getLogger(__name__)

_PREFIX = "ds-"
_RANDOM_BYTES = 32
_MAX_NAME_CHARACTERS = DEFAULT_LIMITS.max_key_name_length
_RELOAD_SECONDS = 1.0  # seconds between two checks of the file


class ApiKey(Section):
    """One key in the file."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="Hash of the key, in hexadecimal.")
    max_requests: int | None = Field(
        None,
        ge=1,
        description="Maximum number of concurrent requests with this key; null: no limit for the "
        "key.",
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Maximum number of tokens per minute, of prompts and answers; null: no limit.",
    )


class Allowance:
    """What one key is using. Times are of time.monotonic()."""

    def __init__(self, name: str, key: ApiKey) -> None:
        self.name = name
        self.key = key
        self._num_running = 0
        self._tokens = float(key.tokens_per_minute or 0)  # tokens left; negative when overdrawn
        self._filled_at = time.monotonic()

    @contextmanager
    def one_request(self) -> Iterator[None]:
        """Count a request while it runs. Raises HttpError (429) if the key is used up."""
        limit = self.key.max_requests
        if limit is not None and self._num_running >= limit:
            raise _too_many(f"this key may have {limit} requests at a time", 1)
        if (seconds := self._seconds_to_wait()) > 0:
            raise _too_many(
                f"this key may use {self.key.tokens_per_minute} tokens a minute", seconds
            )
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def charge(self, num_tokens: int) -> None:
        """Take tokens from the budget, which may be overdrawn; negative numbers give some back."""
        self._tokens -= num_tokens

    def _seconds_to_wait(self) -> int:
        """Return the seconds until the budget is positive again; 0 if it is."""
        rate = (self.key.tokens_per_minute or 0) / 60
        if not rate:
            return 0
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._filled_at) * rate, rate * 60)
        self._filled_at = now
        return 0 if self._tokens > 0 else math.floor(-self._tokens / rate) + 1


class Keys:
    """The keys of a file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ConfigError."""
        self._path = path
        self._allowances = [Allowance(*item) for item in read_keys(path).items()]
        self._version = _version(path)
        self._looked_at = time.monotonic()

    def find(self, key: str) -> Allowance | None:
        """Return the allowance of a key, None if unknown. Takes the same time for all keys."""
        self._reload()
        digest, found = key_hash(key), None
        for allowance in self._allowances:
            if hmac.compare_digest(allowance.key.sha256, digest):
                found = allowance
        return found

    def _reload(self) -> None:
        """Reread the file if it has changed; keep the known keys if it is unreadable."""
        now = time.monotonic()
        if now - self._looked_at < _RELOAD_SECONDS:
            return
        self._looked_at = now
        if (version := _version(self._path)) == self._version:
            return
        self._version = version
        try:
            keys = _read(self._path)
        except ConfigError as error:
            logger.error("API keys stay as they were: %s", error)
            return
        known = {allowance.name: allowance for allowance in self._allowances}
        self._allowances = [
            known[name]
            if name in known and known[name].key == key
            else Allowance(name, key)
            for name, key in keys.items()
        ]  # fmt: skip
        logger.info("read %d API keys from %s", len(keys), self._path)


def read_keys(path: Path) -> dict[str, ApiKey]:
    """Return the keys in a file by name. Raises ConfigError, also for a file without keys."""
    keys = _read(path)
    if not keys:
        raise ConfigError(f"{path} has no keys: `diffuspec keys add` makes one")
    return keys


def _read(path: Path) -> dict[str, ApiKey]:
    """Return the keys in a file, which may have become empty. Raises ConfigError."""
    keys = {}
    for name, data in read_yaml(path, "key file", may_be_empty=True).items():
        _check_name(path, str(name))
        try:
            keys[str(name)] = validate(ApiKey, data)
        # the error's message would contain the value, which may be the key itself
        except ConfigError:
            raise ConfigError(
                f"{path}: {name} must have `sha256` (64 digits and letters a to f), and may have "
                "`max_requests` and `tokens_per_minute`"
            ) from None
    return keys


def _check_name(path: Path, name: str) -> None:
    """Raise ConfigError for a name that is too long to be sent to coordinators."""
    if len(name) > _MAX_NAME_CHARACTERS:
        raise ConfigError(
            f"{path}: the name of a key must have at most {_MAX_NAME_CHARACTERS} letters, got "
            f"{name[:_MAX_NAME_CHARACTERS]}..."
        )


def key_hash(key: str) -> str:
    """Return the hash that the file stores instead of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def add_key(
    path: Path, name: str, max_requests: int | None = None, tokens_per_minute: int | None = None
) -> str:
    """Append a new key to a file, created if necessary, and return it. Raises ConfigError."""
    is_there = path.exists()
    _check_name(path, name)
    if is_there and name in _read(path):
        raise ConfigError(f"{path} has a key {name} already")
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    lines = [f'"{name}":', f'  sha256: "{key_hash(key)}"']
    if max_requests is not None:
        lines.append(f"  max_requests: {max_requests}")
    if tokens_per_minute is not None:
        lines.append(f"  tokens_per_minute: {tokens_per_minute}")
    if is_there and not path.read_text(encoding="utf-8").endswith("\n"):
        lines.insert(0, "")  # ends an unfinished last line
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return key


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file does; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _too_many(message: str, seconds: int) -> HttpError:
    return HttpError(
        429,
        f"{message}; try again later",
        "rate_limit_exceeded",
        kind="rate_limit_error",
        headers={"retry-after": str(seconds)},
    )
