"""A running OpenAI-compatible service as a `LoadClient`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

import httpx2

from diffuspec.bench.load import TimedTokens
from diffuspec.core.errors import ConfigError, OverloadedError, WorkerError
from diffuspec.core.types import Prompt

_CHATS = "/v1/chat/completions"
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 120.0  # longest silence between two parts of an answer
_GREEDY: Mapping[str, Any] = {"temperature": 0}


class RefusedError(WorkerError):
    """The service answered with an error's status; it has the service's message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class HttpClient:
    """Sends chats. `speculation` goes into every request body, `sampling` into those of `stream`.

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
        try:
            async with contextlib.aclosing(self.chunks(body)) as chunks:
                async for chunk in chunks:
                    yield _timed(chunk)
        except RefusedError as error:
            if error.status in (429, 503):
                raise OverloadedError(str(error)) from error
            raise

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the chunks of a chat with `stream: true`. Raises RefusedError and WorkerError.

        A caller that stops reading early must close it, which closes the connection.
        """
        is_whole = False
        try:
            async with self._client.stream("POST", _CHATS, json=self._complete(body)) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise _refusal(reply)
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        chunk = json.loads(line.removeprefix("data: "))
                        if "error" in chunk:
                            raise WorkerError(chunk["error"]["message"])
                        yield chunk
                    is_whole = is_whole or line == "data: [DONE]"
        except httpx2.HTTPError as error:
            raise WorkerError(f"{self._url}: {error!r}") from error
        if not is_whole:
            raise WorkerError(f"{self._url}: the stream ended before [DONE]")

    async def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a chat without `stream`. Raises RefusedError and WorkerError."""
        try:
            reply = await self._client.post(_CHATS, json=self._complete(body))
        except httpx2.HTTPError as error:
            raise WorkerError(f"{self._url}: {error!r}") from error
        if reply.status_code != 200:
            raise _refusal(reply)
        answer: Mapping[str, Any] = reply.json()
        return answer

    def _complete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return body if self._speculation is None else {**body, "speculation": self._speculation}


def _timed(chunk: Mapping[str, Any]) -> TimedTokens:
    choice = chunk["choices"][0]
    text = choice["delta"].get("content") or ""
    return TimedTokens(time.monotonic(), len(choice.get("token_ids") or ()), text)


def _refusal(reply: httpx2.Response) -> RefusedError:
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = reply.text[:200]
    return RefusedError(reply.status_code, message)
