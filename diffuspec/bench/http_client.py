"""A running OpenAI-compatible service as a `LoadClient`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

import httpx2

from diffuspec.bench.load import TimedTokens
from diffuspec.core.errors import ConfigError, OverloadedError, WorkerError
from diffuspec.core.types import Prompt

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 120.0  # longest silence between two parts of an answer
_GREEDY: Mapping[str, Any] = {"temperature": 0}


class HttpClient:
    """Streams chat answers; `speculation` and `sampling` go into every request body.

    A context manager.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        speculation: Mapping[str, Any] | str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        sampling: Mapping[str, Any] = _GREEDY,
    ) -> None:
        """`url`: the service's, without /v1. `transport`: a fake network, for tests."""
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            timeout=httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS, pool=None),
            limits=httpx2.Limits(max_connections=None),
            transport=transport,
            trust_env=False,
        )
        self._url = url
        self._speculation = speculation
        self._sampling = sampling

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def model(self) -> str:
        """Return the id of the served model. Raises ConfigError if the service does not answer."""
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL must begin with http://, got {self._url!r:.80}")
        try:
            reply = await self._client.get("/v1/models")
            reply.raise_for_status()
            name: str = reply.json()["data"][0]["id"]
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            # the rest is a link to a page about status codes
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{self._url} does not answer as OpenAI's API: {reason}") from error
        return name

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        """Yield an answer to chat messages. Raises OverloadedError and WorkerError."""
        body: dict[str, Any] = {
            "messages": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "return_token_ids": True,
            **self._sampling,
        }
        if self._speculation is not None:
            body["speculation"] = self._speculation
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise _refusal(reply)
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        yield _timed(json.loads(line.removeprefix("data: ")))
        except httpx2.HTTPError as error:
            raise WorkerError(f"{self._url}: {error!r}") from error


def _timed(chunk: Mapping[str, Any]) -> TimedTokens:
    """Return the tokens of an event. Raises WorkerError for an error event."""
    if "error" in chunk:
        raise WorkerError(chunk["error"]["message"])
    choice = chunk["choices"][0]
    text = choice["delta"].get("content") or ""
    return TimedTokens(time.monotonic(), len(choice.get("token_ids") or ()), text)


def _refusal(reply: httpx2.Response) -> Exception:
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = reply.text[:200]
    kind = OverloadedError if reply.status_code in (429, 503) else WorkerError
    return kind(f"{reply.status_code}: {message}")
