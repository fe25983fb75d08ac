"""Requests as received by HTTP: checked, with replies in the format of an API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.types import RequestOutput
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.answers import Exchange
from diffuspec.serve.openai.errors import ErrorAnswer, in_words_of, renamed
from diffuspec.serve.openai.jobs import Endpoint, Job
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.replies import make_reply

Data: TypeAlias = Mapping[str, Any]  # a JSON object: a whole reply, or the data of one event


class Reply(Protocol):
    """The reply to one request, while its outputs arrive."""

    def add(self, index: int, output: RequestOutput) -> None:
        """Take an output of the generation with this index."""
        ...

    def whole(self) -> Data:
        """Return the object of a non-streaming request. All answers are finished."""
        ...

    def begin(self) -> Sequence[Data]:
        """Return the events before all outputs."""
        ...

    def events(self, index: int, output: RequestOutput) -> Sequence[Data]:
        """Take an output; return the resulting events."""
        ...

    def end(self) -> Sequence[Data]:
        """Return the events after all outputs."""
        ...

    def fail(self, answer: ErrorAnswer) -> Sequence[Data]:
        """Return the events that end a failed stream."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request."""

    job: Job
    make_reply: Callable[[Exchange], Reply]
    ends_with_done: bool = False  # whether [DONE] follows the events of a successful stream
    names: Mapping[str, str] = field(default_factory=dict)  # this API's key for each key of a chat

    def in_its_words(self, error: InvalidRequestError) -> InvalidRequestError:
        """Return an error about the request with this API's key names."""
        return renamed(in_words_of(error, self.job.form_asked_by), self.names)


# A function that checks a body. It raises BadRequestError, which names the wrong key.
Ask: TypeAlias = Callable[[object, ServedModel], Asked]


def ask_chat(body: object, model: ServedModel) -> Asked:
    """Check the body of /v1/chat/completions. Raises BadRequestError."""
    return _ask("/v1/chat/completions", body, model)


def ask_completion(body: object, model: ServedModel) -> Asked:
    """Check the body of /v1/completions. Raises BadRequestError."""
    return _ask("/v1/completions", body, model)


def _ask(endpoint: Endpoint, body: object, model: ServedModel) -> Asked:
    job = parse(endpoint, body, model)
    return Asked(job, make_reply, ends_with_done=True)
