"""Answers requests, in the format of any API."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias

from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from diffuspec.core.errors import InvalidRequestError, OverloadedError
from diffuspec.serve.backend import Backend, ServedModel
from diffuspec.serve.generation import Indexed, outputs
from diffuspec.serve.http.allowance import Allowance
from diffuspec.serve.http.body import read_json
from diffuspec.serve.http.edge import use_id
from diffuspec.serve.http.errors import answer_for
from diffuspec.serve.http.events import DONE, EventStream, event, unless_gone
from diffuspec.serve.http.ignored_keys import IgnoredKeys
from diffuspec.serve.http.shared_threads import SharedThreads
from diffuspec.serve.messages.objects import TokenCount
from diffuspec.serve.openai.answers import Exchange
from diffuspec.serve.openai.asking import Ask, Asked, Data, Reply
from diffuspec.serve.openai.jobs import Generation, Job, encode
from diffuspec.serve.openai.objects import DetokenizedText, TokenizedPrompt
from diffuspec.serve.openai.parsing import check_model
from diffuspec.serve.openai.tokenization import tokenizer_info
from diffuspec.serve.responses.objects import InputTokens
from diffuspec.serve.settings import ServeSettings

_MAX_COUNTING = 64  # bodies that wait until their tokens are counted
_MAX_EXPECTED_TOKENS = 256  # tokens reserved for an answer, at most


class Completions:
    """Answers the requests of all APIs."""

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._ignored = IgnoredKeys()
        most = (
            settings.max_requests
        )  # this bounds all requests in progress, so that none is refused here
        self._threads = SharedThreads(settings.max_tokenizing, most, "tokenize")

    async def answer(self, ask: Ask, request: Request) -> Response:
        """Answer a request, streaming or not, within the time that the settings allow."""
        settings = self._settings
        body = await read_json(request, settings.max_body_bytes, settings.body_seconds)
        model = self._backend.model
        check_model(body, model)
        asked = ask(body, model)
        if asked.job.request_id is not None:
            use_id(request.scope, asked.job.request_id)
        response = await unless_gone(self._answer(asked, model, request.state), request.receive)
        self._ignored.tell(asked.job.ignored, response)
        return response

    async def _answer(self, asked: Asked, model: ServedModel, state: State) -> Response:
        try:
            return await self._reply(asked, model, state)
        except InvalidRequestError as error:
            raise asked.in_its_words(error) from error

    async def _reply(self, asked: Asked, model: ServedModel, state: State) -> Response:
        job, num_bytes, tokenizer = asked.job, state.num_body_bytes, self._backend.tokenizer
        salted = _salted(job, state.allowance)
        generations = await self._threads.run(lambda: encode(salted, tokenizer, model), num_bytes)
        created = int(time.time())
        reply = asked.make_reply(
            Exchange(job, generations, tokenizer, state.request_id, model.name, created)
        )
        stream = self._outputs(job, generations, state)
        if job.stream:
            return await self._stream(asked, reply, stream)
        async with aclosing(stream):
            async for index, output in stream:
                reply.add(index, output)
        if job.sampling.prompt_logprobs is None:
            return JSONResponse(reply.whole())
        # Decoding thousands of tokens here would block the event loop.
        return await self._threads.run(lambda: JSONResponse(reply.whole()), num_bytes)

    def _outputs(
        self, job: Job, generations: Sequence[Generation], state: State
    ) -> AsyncGenerator[Indexed]:
        seconds, request_id = self._settings.request_seconds, state.request_id
        allowance: Allowance | None = state.allowance
        if allowance is None:
            return outputs(self._backend, generations, request_id, seconds)
        places = allowance.one_answer
        stream = outputs(self._backend, generations, request_id, seconds, places)
        prompts = (one.prompt_token_ids for one in generations[:: job.num_choices])
        lengths = (generation.sampling.max_tokens for generation in generations)
        expected = sum(min(length, _MAX_EXPECTED_TOKENS) for length in lengths)
        return _charged(stream, allowance, sum(map(len, prompts)), expected)

    async def _stream(
        self, asked: Asked, reply: Reply, stream: AsyncGenerator[Indexed]
    ) -> Response:
        """Await the first output before sending headers, so that early errors have their status."""
        try:
            first = await anext(stream)
        except BaseException:
            await stream.aclose()
            raise
        events = _events(asked, reply, first, stream)
        return EventStream(events, self._settings.write_seconds)


def _salted(job: Job, allowance: Allowance | None) -> Job:
    """Return a job that shares cached prefixes with jobs of the same key and salt only."""
    if allowance is None:
        return job
    salt = allowance.cache_salt(job.sampling.cache_salt)
    return replace(job, sampling=job.sampling.derive(cache_salt=salt))


async def _charged(
    stream: AsyncGenerator[Indexed], allowance: Allowance, num_prompt_tokens: int, num_expected: int
) -> AsyncGenerator[Indexed]:
    """Charge prompts and answers, but not prompts of requests refused before any output.

    While the answers are generated, their expected number of tokens is reserved.
    """
    with allowance.reserve(num_prompt_tokens + num_expected) as reserved:
        reserved.use(num_prompt_tokens)
        async with aclosing(stream):
            try:
                async for index, output in stream:
                    reserved.use(len(output.token_ids))
                    yield index, output
            except (InvalidRequestError, OverloadedError):
                if reserved.num_used == num_prompt_tokens:
                    reserved.num_used = 0
                raise


async def _events(
    asked: Asked, reply: Reply, first: Indexed, stream: AsyncGenerator[Indexed]
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; [DONE] only after success."""
    async with aclosing(stream):
        try:
            yield _written([*reply.begin(), *reply.events(*first)])
            async for output in stream:
                if data := _written(reply.events(*output)):
                    yield data
            yield _written(reply.end()) + (DONE if asked.ends_with_done else b"")
        except InvalidRequestError as error:
            yield _written(reply.fail(answer_for(asked.in_its_words(error))))
        except Exception as error:
            yield _written(reply.fail(answer_for(error)))


def _written(events: Sequence[Data]) -> bytes:
    return b"".join(map(event, events))


Answer: TypeAlias = Callable[
    [object, Any, ServedModel], TokenizedPrompt | DetokenizedText | TokenCount | InputTokens
]


class Tokenization:
    """Answers requests that only need the tokenizer, in threads of their own."""

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._threads = SharedThreads(1, _MAX_COUNTING, "count")

    async def answer(self, answer: Answer, request: Request) -> JSONResponse:
        """Answer with the result of `answer` for the body, the tokenizer and the model."""
        body = await read_json(request, self._settings.max_body_bytes, self._settings.body_seconds)
        model, tokenizer = self._backend.model, self._backend.tokenizer
        check_model(body, model)
        counting = self._threads.run(
            lambda: JSONResponse(answer(body, tokenizer, model)), request.state.num_body_bytes
        )
        return await unless_gone(counting, request.receive)

    async def info(self) -> JSONResponse:
        """Describe the tokenizer."""
        tokenizer = self._backend.tokenizer
        return await self._threads.run(lambda: JSONResponse(tokenizer_info(tokenizer)), 0)
