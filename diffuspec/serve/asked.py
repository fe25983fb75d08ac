"""The seam between HTTP and its APIs: a request in an API's words, and the reply in the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.types import RequestOutput
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.errors import ErrorAnswer
from diffuspec.serve.openai.jobs import Generation, Job

Data: TypeAlias = Mapping[str, Any]  # a JSON object, of a whole reply or of one event


class Reply(Protocol):
    """The reply to one request, while its outputs arrive."""

    def add(self, index: int, output: RequestOutput) -> None:
        """Take an output of the generation with this index."""
        ...

    def whole(self) -> Data:
        """Return the object of a request that does not stream. All answers are finished."""
        ...

    def begin(self) -> Sequence[Data]:
        """Return the events that come before all outputs."""
        ...

    def events(self, index: int, output: RequestOutput) -> Sequence[Data]:
        """Take an output; return the events of what it adds."""
        ...

    def end(self) -> Sequence[Data]:
        """Return the events that come after all outputs."""
        ...

    def fail(self, answer: ErrorAnswer) -> Sequence[Data]:
        """Return the events that end a stream which has failed."""
        ...


class Asked(Protocol):
    """A checked request."""

    @property
    def job(self) -> Job: ...

    @property
    def ends_with_done(self) -> bool:
        """Whether [DONE] follows the events of a stream that has succeeded."""
        ...

    def reply(
        self,
        generations: Sequence[Generation],
        tokenizer: Any,
        *,
        id: str,
        model: str,
        created: int,
    ) -> Reply:
        """Return the reply. `id` is the request's; `created` are seconds since 1970."""
        ...

    def in_its_words(self, error: InvalidRequestError) -> InvalidRequestError:
        """Return an error about the request with this API's names of the keys."""
        ...


# A function that checks a body. It raises BadRequestError, which names the wrong key.
Ask: TypeAlias = Callable[[object, ServedModel], Asked]
