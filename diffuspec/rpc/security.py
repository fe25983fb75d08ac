"""Access to a role: a bearer token on every call and, with TLS, certificates on both sides."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from diffuspec.core.addresses import is_loopback
from diffuspec.core.errors import ConfigError

TOKEN_KEY = "authorization"
_SCHEME = "Bearer "
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for mutual TLS: the authority that signed both sides, and this side's certificate.

    server_name: the name in the server's certificate if it differs from the address: one
    certificate may serve machines whose addresses are not known in advance.
    """

    ca: Path
    certificate: Path
    key: Path
    server_name: str | None = None

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key. Raises ConfigError."""
        try:
            return self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes()
        except OSError as error:
            reason = f"cannot read TLS file {error.filename}: {error.strerror}"
            raise ConfigError(reason) from error


@dataclass(frozen=True, slots=True)
class SharedCertificate:
    """A self-signed certificate and its key in PEM: both sides of every connection show it."""

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    server_name: str  # the name in the certificate

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key."""
        return self.certificate, self.certificate, self.key


@dataclass(frozen=True, slots=True)
class Security:
    """The deployment's token, and TLS where there are certificates.

    is_open: a server also accepts calls without the token; only on loopback and Unix sockets.
    """

    token: str = field(repr=False)
    tls: TlsFiles | SharedCertificate | None = None
    is_open: bool = False

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise ConfigError("the token must be printable ASCII without spaces, and not empty")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call: the token."""
        return ((TOKEN_KEY, _SCHEME + self.token),)

    def accepts(self, authorization: str | bytes | None) -> bool:
        """Return whether a call's authorization contains the token; compares in constant time."""
        if self.is_open:
            return True
        found = authorization.encode() if isinstance(authorization, str) else authorization or b""
        return hmac.compare_digest(found, (_SCHEME + self.token).encode())

    def server_credentials(self, host: str) -> grpc.ServerCredentials | None:
        """Return the credentials for listening; None: no TLS, which is allowed only on loopback.

        Raises ConfigError.
        """
        if self.is_open and not is_loopback(host):
            raise ConfigError(f"{host} can be reached by others: give --token-file FILE")
        if self.tls is None:
            if not is_loopback(host):
                raise ConfigError(
                    f"serving on {host} without TLS would show every prompt to the network; "
                    "give TLS files, or serve on 127.0.0.1"
                )
            return None
        ca, certificate, key = self.tls.read()
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials for connecting; None: no TLS."""
        if self.tls is None:
            return None
        ca, certificate, key = self.tls.read()
        return grpc.ssl_channel_credentials(ca, key, certificate)


def read_token(path: Path) -> str:
    """Return the token in a file. Raises ConfigError if it cannot be read or is empty."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read the token in {path}: {reason}") from error
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{path} must hold a token: printable ASCII without spaces")
    return token


def new_token() -> str:
    """Return a token for a deployment, with 256 bits of randomness."""
    return secrets.token_urlsafe(32)
