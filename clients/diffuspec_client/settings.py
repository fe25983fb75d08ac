"""Where the draft server is, and how an engine connects to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

_PREFIX = "DIFFUSPEC_DRAFT_"
_MAX_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Settings:
    """A client's settings. Each may also come from the environment, as DIFFUSPEC_DRAFT_<NAME>."""

    server: str = "127.0.0.1:9500"  # HOST:PORT, or unix:PATH
    deadline_seconds: float = 0.25  # longest time that a step waits for drafts
    tenant: str = ""
    token_file: str = ""  # file with the token that the server requires
    tls_ca: str = ""  # certificates of the CA; with the next two, it turns TLS on
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""  # name in the server's certificate, if it differs from the address

    def __post_init__(self) -> None:
        if not 0 < self.deadline_seconds <= _MAX_DEADLINE_SECONDS:
            raise ValueError(
                f"deadline_seconds must be above 0 and at most {_MAX_DEADLINE_SECONDS:g}, got "
                f"{self.deadline_seconds}"
            )
        tls = (self.tls_ca, self.tls_certificate, self.tls_key)
        if any(tls) and not all(tls):
            raise ValueError("tls_ca, tls_certificate and tls_key belong together")

    @classmethod
    def read(
        cls, given: Mapping[str, object], environment: Mapping[str, str] = os.environ
    ) -> Settings:
        """Return the settings given, or else the environment's. Raises ValueError."""
        known = [one.name for one in fields(cls)]
        unknown = sorted(given.keys() - {*known})
        if unknown:
            raise ValueError(f"unknown setting {unknown[0]!r}; known are {', '.join(known)}")
        found = {
            name: environment[_PREFIX + name.upper()]
            for name in known
            if _PREFIX + name.upper() in environment
        }
        values: dict[str, Any] = {**found, **given}
        if "deadline_seconds" in values:
            values["deadline_seconds"] = float(values["deadline_seconds"])
        return cls(**values)

    @property
    def token(self) -> str | None:
        """The token that the server requires. Raises OSError."""
        return (
            Path(self.token_file).read_text(encoding="utf-8").strip() if self.token_file else None
        )
