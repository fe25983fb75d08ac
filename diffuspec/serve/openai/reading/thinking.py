"""Reasoning between marks, before the rest of an answer."""

from __future__ import annotations

from diffuspec.serve.openai.reading.pieces import (
    SPACE,
    Piece,
    PlainReader,
    Reader,
    StateReader,
    Thought,
    length_begun,
)

OPEN, CLOSE = "<think>", "</think>"


class ThinkingReader(StateReader):
    """Separates reasoning from an answer, which another reader continues.

    Space around reasoning is dropped. Everything after its first end is the answer, including
    further marks.
    """

    def __init__(self, then: Reader | None = None, *, starts_inside: bool = False) -> None:
        """starts_inside: the answer begins with reasoning, without an opening mark."""
        super().__init__(self._at_start)
        self._then = then or PlainReader()
        self._is_inside = starts_inside

    @property
    def is_within_arguments(self) -> bool:
        return self._then.is_within_arguments

    @property
    def is_reasoning(self) -> bool:
        return self._is_inside

    def finish(self) -> list[Piece]:
        rest = self._take_rest()
        if self._is_inside:
            rest = rest.strip(SPACE)
            return [Thought(rest)] if rest else []
        if self._read_on == self._after:
            rest = rest.lstrip(SPACE)
        return [*(self._then.read(rest) if rest else []), *self._then.finish()]

    def _at_start(self, pieces: list[Piece]) -> bool:
        begun = self._text.lstrip(SPACE)
        if not begun or (begun != OPEN and OPEN.startswith(begun)):
            return False
        if begun.startswith(OPEN):
            self._text, self._is_inside = begun[len(OPEN) :], True
        self._read_on = self._before_thought if self._is_inside else self._in_answer
        return True

    def _before_thought(self, pieces: list[Piece]) -> bool:
        self._text = self._text.lstrip(SPACE)
        if self._text:
            self._read_on = self._in_thought
        return bool(self._text)

    def _in_thought(self, pieces: list[Piece]) -> bool:
        thought, found, after = self._text.partition(CLOSE)
        if not found:
            thought = thought[: len(thought) - length_begun(thought, [CLOSE])]
        thought = thought.rstrip(SPACE)
        pieces += [Thought(thought)] if thought else []
        self._text = after if found else self._text[len(thought) :]
        if found:
            self._is_inside, self._read_on = False, self._after
        return bool(found)

    def _after(self, pieces: list[Piece]) -> bool:
        self._text = self._text.lstrip(SPACE)
        if self._text:
            self._read_on = self._in_answer
        return bool(self._text)

    def _in_answer(self, pieces: list[Piece]) -> bool:
        text, self._text = self._text, ""
        pieces += self._then.read(text) if text else []
        return False
