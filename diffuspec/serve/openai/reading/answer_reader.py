"""The pieces of one answer, token by token."""

from __future__ import annotations

from collections.abc import Iterator

from diffuspec.core.types import RequestOutput
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.reading.pieces import Piece, Thought
from diffuspec.serve.openai.reading.readers import make_reader


class AnswerReader:
    """Reads the outputs of one generation, and counts the tokens of its reasoning."""

    def __init__(self, job: Job, generation: Generation) -> None:
        self._reader = make_reader(job.conventions, job.chat.tools, generation.thinking)
        self._hides_reasoning = job.hides_reasoning
        self.num_reasoning_tokens = 0

    @property
    def is_within_arguments(self) -> bool:
        """Whether the latest call is not whole."""
        return self._reader.is_within_arguments

    def read(self, output: RequestOutput) -> list[Piece]:
        """Return the pieces that an output completes."""
        return [piece for pieces in self.read_tokens(output) for piece in pieces]

    def read_tokens(self, output: RequestOutput) -> Iterator[list[Piece]]:
        """Yield the pieces that each token completes; at the end of the answer, those held back."""
        reader = self._reader
        for text in output.pieces:
            was_reasoning = reader.is_reasoning
            pieces = reader.read(text)
            self.num_reasoning_tokens += was_reasoning or reader.is_reasoning
            yield self._shown(pieces)
        if output.finish_reason is not None:
            yield self._shown(reader.finish())

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        if not self._hides_reasoning:
            return pieces
        return [piece for piece in pieces if not isinstance(piece, Thought)]
