"""The pieces of an answer, and the base classes of the readers that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Call:
    """A call in an answer. `arguments` is JSON text, truncated if the answer is."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a call."""

    name: str | None  # function of a call that begins; None: more of the latest call
    arguments: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A part of the reasoning before an answer."""

    text: str


Piece: TypeAlias = str | CallPart | Thought
State: TypeAlias = Callable[[list[Piece]], bool]

SPACE = " \t\r\n"


class Reader(Protocol):
    """Splits a text that arrives in parts. Only marks and the space around them are dropped."""

    @property
    def is_within_arguments(self) -> bool:
        """Whether the latest call is incomplete."""
        ...

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as known."""
        ...

    def read(self, text: str) -> list[Piece]:
        """Return the pieces completed by the next part of the text."""
        ...

    def finish(self) -> list[Piece]:
        """Return the pieces held back so far, at the end of the text."""
        ...


class PlainReader:
    """Treats all text as content."""

    is_within_arguments = False
    is_reasoning = False

    def read(self, text: str) -> list[Piece]:
        return [text] if text else []

    def finish(self) -> list[Piece]:
        return []


class StateReader:
    """A reader that is in one state at a time.

    A state consumes the front of the text, adds pieces, and may switch to another state. It returns
    False if it needs more text.
    """

    def __init__(self, first: State) -> None:
        self._text = ""  # text not consumed yet
        self._read_on = first

    def read(self, text: str) -> list[Piece]:
        self._text += text
        pieces: list[Piece] = []
        while self._read_on(pieces):
            continue
        return pieces

    def _take_rest(self) -> str:
        """Return and clear the text not passed on yet."""
        rest, self._text = self._text, ""
        return rest


class MarkedCallReader(StateReader):
    """The base class of readers of calls between marks; space around calls is dropped."""

    is_reasoning = False

    def __init__(self, first: State) -> None:
        super().__init__(first)
        # the mark that opened a block without calls so far, with the space before it
        self._mark = ""
        self._num_calls = 0
        self._has_content = False  # whether content came after the latest call
        self._has_said = False  # whether the answer has any content

    def _content(self, text: str) -> list[Piece]:
        """Return a text outside of calls as content, on a new line after earlier content."""
        if self._num_calls and not self._has_content:
            text = text.lstrip(SPACE)
            text = f"\n{text}" if text and self._has_said else text
        if not text:
            return []
        self._has_content = self._has_said = True
        return [text]


def calls_in(pieces: Iterable[Piece]) -> list[Call]:
    """Return the calls assembled from pieces."""
    calls: list[Call] = []
    for piece in pieces:
        if not isinstance(piece, CallPart):
            continue
        if piece.name is not None:
            calls.append(Call(piece.name, piece.arguments))
        else:
            calls[-1] = Call(calls[-1].name, calls[-1].arguments + piece.arguments)
    return calls


def length_begun(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a mark."""
    longest = max(map(len, marks)) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((n for n in sizes if any(one.startswith(text[-n:]) for one in marks)), 0)


def first_mark(text: str, marks: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Return the position of the first mark from `start` on, and the mark, or None."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark, start)) >= 0]
    return (min(found)[0], min(found)[2]) if found else None
