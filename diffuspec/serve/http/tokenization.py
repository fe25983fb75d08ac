"""POST /tokenize, /detokenize and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse

from diffuspec.serve.backend import Backend, ServedModel
from diffuspec.serve.http.body import read_json
from diffuspec.serve.messages.objects import TokenCount
from diffuspec.serve.openai.objects import DetokenizedText, TokenizedPrompt
from diffuspec.serve.openai.parsing import check_model
from diffuspec.serve.settings import ServeSettings

Answer: TypeAlias = Callable[
    [object, Any, ServedModel], TokenizedPrompt | DetokenizedText | TokenCount
]


class Tokenization:
    """Answers what needs the tokenizer alone, in a thread that no other request waits for."""

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "count")

    async def answer(self, answer: Answer, request: Request) -> JSONResponse:
        """Answer with what `answer` makes of the body, the tokenizer and the model."""
        body = await read_json(request, self._settings.max_body_bytes, self._settings.body_seconds)
        model, tokenizer = self._backend.model, self._backend.tokenizer
        check_model(body, model)
        found = asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: JSONResponse(answer(body, tokenizer, model))
        )
        return await found
