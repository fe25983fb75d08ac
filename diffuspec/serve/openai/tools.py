"""Calls to functions in answers, in the form that Hermes and Qwen models write them.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_MAX_HEAD = 1024  # characters in which a head is looked for; longer calls are read when they end


@dataclass(frozen=True, slots=True)
class Call:
    """A call that an answer contains; `arguments` is JSON text, cut if the answer is."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """What a part of an answer adds to a call."""

    name: str | None  # of a call that begins; None: more of the latest call
    arguments: str


Piece: TypeAlias = str | CallPart


def calls_in(pieces: Iterable[Piece]) -> list[Call]:
    """Return the calls that pieces make up."""
    calls: list[Call] = []
    for piece in pieces:
        if isinstance(piece, str):
            continue
        if piece.name is not None:
            calls.append(Call(piece.name, piece.arguments))
        else:
            calls[-1] = Call(calls[-1].name, calls[-1].arguments + piece.arguments)
    return calls


class CallReader:
    """Splits a text that arrives in parts into content and parts of calls.

    What could be the beginning of a call is held back. Space around calls is dropped. Arguments are
    passed on as they are written, once the name before them is known; what has no name that can be
    read is content.
    """

    def __init__(self) -> None:
        self._text = ""  # not yet passed on
        self._read_on = self._in_content
        self._arguments = _JsonObject()
        self._num_calls = 0
        self._has_content = False

    @property
    def is_within_arguments(self) -> bool:
        """Whether the latest call is not whole."""
        return self._read_on == self._in_arguments

    def read(self, text: str) -> list[Piece]:
        """Return the pieces that a further part of the text completes."""
        self._text += text
        pieces: list[Piece] = []
        while self._read_on(pieces):
            continue
        return pieces

    def finish(self) -> list[Piece]:
        """Return the pieces held back so far: the text has ended."""
        rest, self._text = self._text, ""
        if self._read_on == self._in_head:
            return self._call(rest, is_closed=False)
        return self._content(rest) if self._read_on == self._in_content else []

    def _in_content(self, pieces: list[Piece]) -> bool:
        before, found, after = self._text.partition(OPEN)
        if found:
            pieces += self._content(before.rstrip())
            self._text, self._read_on = after, self._in_head
            return True
        end = len(self._text) - _length_held(self._text)
        pieces += self._content(self._text[:end])
        self._text = self._text[end:]
        return False

    def _in_head(self, pieces: list[Piece]) -> bool:
        head = _HEAD.match(self._text) if len(self._text) <= _MAX_HEAD else None
        if head and (name := _read_json(head[1])) is not None:
            pieces += self._begin(CallPart(name, ""))
            self._arguments = _JsonObject()
            self._text, self._read_on = self._text[head.end() :], self._in_arguments
            return True
        before, found, after = self._text.partition(CLOSE)
        if found:
            pieces += self._call(before, is_closed=True)
            self._text, self._read_on = after, self._in_content
        return bool(found)

    def _in_arguments(self, pieces: list[Piece]) -> bool:
        end = self._arguments.read(self._text)
        if end:
            pieces.append(CallPart(None, self._text[:end]))
        self._text = self._text[end:]
        if self._arguments.has_ended:
            self._read_on = self._after_arguments
        return self._arguments.has_ended

    def _after_arguments(self, pieces: list[Piece]) -> bool:
        _, found, after = self._text.partition(CLOSE)
        if found:
            self._text, self._read_on = after, self._in_content
        return bool(found)

    def _begin(self, call: CallPart) -> list[Piece]:
        self._num_calls += 1
        self._has_content = False
        return [call]

    def _content(self, text: str) -> list[Piece]:
        if self._num_calls and not self._has_content:
            text = text.lstrip()
        if not text:
            return []
        self._has_content = True
        return [text]

    def _call(self, text: str, *, is_closed: bool) -> list[Piece]:
        """Return a call that could not be passed on in parts.

        Its arguments are missing, a text, or written before its name.
        """
        data = _read_json(text)
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            return self._content(OPEN + text + (CLOSE if is_closed else ""))
        arguments = data.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return self._begin(CallPart(data["name"], arguments))


class _JsonObject:
    """Finds the end of a JSON object in a text that arrives in parts."""

    def __init__(self) -> None:
        self.has_ended = False
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False

    def read(self, text: str) -> int:
        """Return how many characters of a further part belong to the object."""
        for place, letter in enumerate(text):
            if self._is_in_text:
                self._is_in_text = self._is_escaped or letter != '"'
                self._is_escaped = letter == "\\" and not self._is_escaped
            elif letter == "<":  # no JSON, but perhaps the end of the call
                self.has_ended = True
                return place
            else:
                self._is_in_text = letter == '"'
                self._depth += (letter in "{[") - (letter in "}]")
                if self._depth <= 0:
                    self.has_ended = True
                    return place + 1
        return len(text)


def _read_json(text: str) -> Any:
    """Return the value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _length_held(text: str) -> int:
    """Return the length of the end of a text that may begin a call, space before it included."""
    begun = next((n for n in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:n])), 0)
    return len(text) - len(text[: len(text) - begun].rstrip())
