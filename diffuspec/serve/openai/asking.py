"""Requests for chats and completions, as the HTTP service takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.errors import in_words_of
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.replies import Reply, make_reply


@dataclass(frozen=True, slots=True)
class AskedOfOpenAi:
    """A request for a chat or a completion."""

    job: Job
    ends_with_done: bool = True

    def reply(self, generations: Sequence[Generation], tokenizer: Any, **head: Any) -> Reply:
        """See `Asked.reply`."""
        return make_reply(self.job, generations, tokenizer, **head)

    def in_its_words(self, error: InvalidRequestError) -> InvalidRequestError:
        """See `Asked.in_its_words`."""
        return in_words_of(error, self.job.form_asked_by)


def ask_chat(body: object, model: ServedModel) -> AskedOfOpenAi:
    """Check the body of /v1/chat/completions. Raises BadRequestError."""
    return AskedOfOpenAi(parse("/v1/chat/completions", body, model))


def ask_completion(body: object, model: ServedModel) -> AskedOfOpenAi:
    """Check the body of /v1/completions. Raises BadRequestError."""
    return AskedOfOpenAi(parse("/v1/completions", body, model))
