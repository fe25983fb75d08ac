"""A backend of the HTTP application as a batch's service, without HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from deploy.batches.results import OK, Reply, ServiceBusyError, ServiceLostError
from diffuspec.core.errors import (
    DiffuspecError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    VerifierLostError,
    VerifierUnavailableError,
    WorkerError,
)
from diffuspec.serve.backend import TokenSource
from diffuspec.serve.generation import outputs
from diffuspec.serve.http.ignored_keys import MAX_NAMED
from diffuspec.serve.openai.answers import Exchange
from diffuspec.serve.openai.errors import answer_to, in_words_of
from diffuspec.serve.openai.jobs import ENDPOINTS, Job, encode
from diffuspec.serve.openai.parsing import check_model, parse
from diffuspec.serve.openai.replies import Whole, make_reply


class BackendService:
    """A `Service` over a backend. Belongs to the backend's event loop."""

    def __init__(self, backend: TokenSource, concurrency: int, timeout_seconds: float) -> None:
        """timeout_seconds bounds one answer."""
        self.concurrency = concurrency
        self._backend = backend
        self._timeout_seconds = timeout_seconds

    async def ask(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        """See `Service.ask`."""
        try:
            return await self._answer(url, body, request_id)
        except VerifierLostError as error:
            raise ServiceLostError(str(error)) from error
        except (OverloadedError, VerifierUnavailableError) as error:
            raise ServiceBusyError(str(error)) from error
        except (WorkerError, RequestCancelledError, TimeoutError) as error:
            raise ServiceLostError(str(error) or type(error).__name__) from error
        except DiffuspecError as error:
            answer = answer_to(error)
            return Reply(answer.status, request_id, answer.body())

    async def is_up(self) -> bool:
        """See `Service.is_up`."""
        return True

    async def _answer(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        """Return the endpoint's reply. Raises the backend's errors."""
        model = self._backend.model
        check_model(body, model)
        [endpoint] = [one for one in ENDPOINTS if one == url]
        job = parse(endpoint, body, model)
        try:
            whole = await self._generate(job, request_id)
        except InvalidRequestError as error:
            raise in_words_of(error, job.form_asked_by) from error
        return Reply(OK, request_id, whole, job.ignored[:MAX_NAMED])

    async def _generate(self, job: Job, request_id: str) -> Whole:
        backend, model = self._backend, self._backend.model
        tokenizer, now = backend.tokenizer, int(time.time())
        generations = await asyncio.to_thread(encode, job, tokenizer, model)
        reply = make_reply(Exchange(job, generations, tokenizer, request_id, model.name, now))
        seconds = self._timeout_seconds
        stream = outputs(backend, generations, request_id, seconds)
        async with aclosing(stream):
            async for index, output in stream:
                reply.add(index, output)
        return reply.whole()
