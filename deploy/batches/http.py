"""A running OpenAI endpoint as a batch's service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx2

from deploy.batches.proxies import proxy_of
from deploy.batches.results import Reply, ServiceBusyError, ServiceLostError
from diffuspec.core.errors import ConfigError
from diffuspec.serve.http.ignored_keys import HEADER, MAX_NAMED
from diffuspec.serve.openai.objects import ErrorCode

MAX_REPLY_BYTES = 64 * 2**20

_CONNECT_SECONDS = 10.0
_MAX_RETRY_AFTER_SECONDS = 120.0
_BUSY = (429, 503)
_NO_ENTRY = (401, 403)
_TIMED_OUT = 408
_NOT_FOUND = 404
_FATAL: ErrorCode = "fatal_request"


class HttpService:
    """A `Service` over HTTP; an async context manager."""

    def __init__(
        self,
        address: str,
        api_key: str | None,
        *,
        concurrency: int,
        timeout_seconds: float,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`address`: the endpoint without /v1. `transport`: a fake network, for tests.

        Raises ConfigError if the environment's proxy for the address cannot be used.
        """
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self.model = ""  # as the endpoint reports it
        self.concurrency = concurrency
        self._address = address
        self._proxy = proxy_of(address)
        self._client = httpx2.AsyncClient(
            base_url=address,
            headers=headers,
            timeout=httpx2.Timeout(timeout_seconds, connect=_CONNECT_SECONDS, pool=None),
            transport=transport or self._transport(concurrency),
        )

    async def __aenter__(self) -> Self:
        """Look up the served model. Raises ConfigError if there is no OpenAI endpoint."""
        if not self._address.startswith(("http://", "https://")):
            raise ConfigError(
                f"--address must be auto or begin with http://, got {self._address!r:.80}"
            )
        await self._client.__aenter__()
        try:
            reply = await self._send("GET", "/v1/models", None, "batch-models")
        except (ServiceBusyError, ServiceLostError) as error:
            await self._client.aclose()
            raise ConfigError(f"--address: no endpoint at {self._address}: {error}") from error
        except BaseException:
            await self._client.aclose()
            raise
        self.model = _model(reply, self._address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    def _transport(self, concurrency: int) -> httpx2.AsyncHTTPTransport:
        limits = httpx2.Limits(max_connections=concurrency)
        try:
            return httpx2.AsyncHTTPTransport(limits=limits, proxy=self._proxy)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"--address: {self._address} is reached {self._by_proxy}, which must begin with "
                "http:// or https://; NO_PROXY=HOST goes without it"
            ) from error

    @property
    def _by_proxy(self) -> str:
        """The proxy in words, without its password; "" if there is none."""
        if self._proxy is None:
            return ""
        return f"by the proxy {httpx2.URL(self._proxy).copy_with(userinfo=b'')} of the environment"

    async def ask(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        """See `Service.ask`. Raises ConfigError if the endpoint refuses the API key."""
        reply = await self._send("POST", url, {"model": self.model, **body}, request_id)
        if reply.status_code == _NOT_FOUND and not _is_about_model(reply.body):
            raise ServiceLostError(f"status {_NOT_FOUND}: nothing has this path now")
        return reply

    async def is_up(self) -> bool:
        """See `Service.is_up`."""
        try:
            return (await self._send("GET", "/v1/models", None, "batch-models")).is_ok
        except (ServiceBusyError, ServiceLostError):
            return False

    async def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, request_id: str
    ) -> Reply:
        headers = {"x-request-id": request_id}
        try:
            async with self._client.stream(method, url, json=body, headers=headers) as response:
                content = await _read(response)
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise ServiceLostError(f"{self._by_proxy}: {reason}".lstrip(": ")) from error
        said = _object_in(content)
        if said is None or not _is_fatal(said):
            _check_status(response)
        if said is None:
            raise ServiceLostError(f"status {response.status_code} without a JSON object")
        names = response.headers.get(HEADER, "").split(", ")
        ignored = tuple(name for name in names[:MAX_NAMED] if name)
        given_id = response.headers.get("x-request-id", request_id)
        return Reply(response.status_code, given_id, said, ignored)


async def _read(response: httpx2.Response) -> bytes:
    """Return the body. Raises ServiceLostError if it is too large to be an answer."""
    parts, num_bytes = [], 0
    async for part in response.aiter_bytes():
        num_bytes += len(part)
        if num_bytes > MAX_REPLY_BYTES:
            raise ServiceLostError(f"a reply above {MAX_REPLY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _object_in(content: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(content)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _is_fatal(said: Mapping[str, Any]) -> bool:
    """Return whether the service says that the request ended its processes."""
    error = said.get("error")
    return isinstance(error, dict) and error.get("code") == _FATAL


def _check_status(response: httpx2.Response) -> None:
    """Raise an error for a status that has nothing to do with the request itself."""
    status = response.status_code
    if status in _NO_ENTRY:
        raise ConfigError(
            f"the endpoint refuses the API key (status {status}); give it with --api-key-file or "
            "DIFFUSPEC_API_KEY"
        )
    if status in _BUSY:
        raise ServiceBusyError(f"status {status}", _retry_after(response))
    if status >= 500 or status == _TIMED_OUT:
        raise ServiceLostError(f"status {status}")


def _is_about_model(said: Mapping[str, Any]) -> bool:
    """Return whether a 404 is about a row's model, rather than a path that is not served now."""
    error = said.get("error", said)
    return "model" in json.dumps(error).lower()


def _retry_after(response: httpx2.Response) -> float:
    """Return the seconds in a Retry-After header; 0 if there is none, or for a date."""
    try:
        seconds = float(response.headers.get("retry-after", 0))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_SECONDS)


def _model(reply: Reply, address: str) -> str:
    models = reply.body.get("data")
    if not reply.is_ok or not isinstance(models, list) or not models:
        raise ConfigError(
            f"--address: {address} is no OpenAI endpoint: GET /v1/models has status "
            f"{reply.status_code} and no list of models"
        )
    return str(models[0].get("id", ""))
