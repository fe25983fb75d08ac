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
import json
import logging
import os
import secrets
import time
from pathlib import Path

from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import read_yaml, validate
from diffuspec.rpc.limits import DEFAULT_LIMITS
from diffuspec.serve.http.allowance import Allowance, ApiKey

logger = logging.getLogger(__name__)

_PREFIX = "ds-"
_RANDOM_BYTES = 32
_MAX_NAME_CHARACTERS = DEFAULT_LIMITS.max_key_name_length
_RELOAD_SECONDS = 1.0  # seconds between two checks of the file


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
                "`max_requests`, `tokens_per_minute` and `cache_group`"
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
    path: Path,
    name: str,
    max_requests: int | None = None,
    tokens_per_minute: int | None = None,
    cache_group: str | None = None,
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
    if cache_group is not None:
        lines.append(f"  cache_group: {json.dumps(cache_group)}")
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
