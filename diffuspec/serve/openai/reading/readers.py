"""Parses an answer into pieces, in the format of its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diffuspec.core.types import RequestOutput
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.forms import Thinking
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.reading import harmony, thinking
from diffuspec.serve.openai.reading.harmony import HarmonyReader
from diffuspec.serve.openai.reading.json_calls import HERMES, LLAMA3, MISTRAL, JsonCallReader
from diffuspec.serve.openai.reading.pieces import Piece, PlainReader, Reader, Thought
from diffuspec.serve.openai.reading.pythonic_calls import PythonicCallReader
from diffuspec.serve.openai.reading.thinking import ThinkingReader
from diffuspec.serve.openai.reading.xml_calls import TagCallReader

_CALL_MARKS = {
    "hermes": (HERMES.mark, HERMES.close),
    "qwen3_coder": (HERMES.mark, HERMES.close),
    "llama3_json": (LLAMA3.mark,),
    "mistral": (MISTRAL.mark, "[ARGS]"),
    "pythonic": ("<|python_start|>",),
}
_CHANNELS = (harmony.CHANNEL, harmony.MESSAGE)


class AnswerReader:
    """Reads the outputs of one generation, and counts the tokens of its reasoning."""

    def __init__(self, job: Job, generation: Generation) -> None:
        self._reader = make_reader(job.conventions, job.chat.tools, generation.thinking)
        self._hides_reasoning = job.hides_reasoning
        self.num_reasoning_tokens = 0

    @property
    def is_within_arguments(self) -> bool:
        """Whether the latest call is incomplete."""
        return self._reader.is_within_arguments

    def read(self, output: RequestOutput) -> list[Piece]:
        """Return the pieces completed by an output."""
        return [piece for pieces in self.read_tokens(output) for piece in pieces]

    def read_tokens(self, output: RequestOutput) -> Iterator[list[Piece]]:
        """Yield the pieces completed by each token; at the end of the answer, those held back."""
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


def make_reader(
    conventions: Conventions, tools: Sequence[Mapping[str, Any]], thinks: Thinking
) -> Reader:
    """Return the reader of the answer to one prompt, which may call the tools."""
    if conventions.has_channels:
        return HarmonyReader()
    calls = _call_reader(conventions, tools) if tools else PlainReader()
    if conventions.reasoning == "none" or thinks == "over":
        return calls
    is_inside = thinks == "inside" or conventions.reasoning == "deepseek_r1"
    return ThinkingReader(calls, starts_inside=is_inside)


def reads_special_tokens(conventions: Conventions, *, has_tools: bool) -> bool:
    """Return whether a reader needs the names of special tokens in the text of an answer."""
    marks: tuple[str, ...] = _CALL_MARKS.get(conventions.tools, ()) if has_tools else ()
    if conventions.reasoning in ("qwen3", "deepseek_r1"):
        marks += (thinking.OPEN, thinking.CLOSE)
    if conventions.has_channels:
        marks += _CHANNELS
    return any(mark in conventions.special_ids for mark in marks)


def _call_reader(conventions: Conventions, tools: Sequence[Mapping[str, Any]]) -> Reader:
    functions = [tool["function"] for tool in tools]
    names = frozenset(function["name"] for function in functions)
    if conventions.tools == "llama3_json":
        return JsonCallReader(LLAMA3, names)
    if conventions.tools == "mistral":
        return JsonCallReader(MISTRAL)
    if conventions.tools == "qwen3_coder":
        return TagCallReader({one["name"]: one.get("parameters", {}) for one in functions})
    if conventions.tools == "pythonic":
        return PythonicCallReader()
    return JsonCallReader(HERMES) if conventions.tools == "hermes" else PlainReader()
