"""Tools: calls to functions, in the form that Hermes and Qwen models write them.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model has written; `arguments` is JSON text."""

    name: str
    arguments: str


Piece: TypeAlias = str | Call


class CallReader:
    """Splits a text that arrives in parts into content and calls.

    What could be the beginning of a call is held back. Space around calls is dropped; what looks
    like a call but is none is content.
    """

    def __init__(self) -> None:
        self._text = ""  # not yet passed on
        self._is_inside = False
        self._num_calls = 0
        self._has_content = False

    def read(self, text: str) -> list[Piece]:
        """Return what a further part of the text completes."""
        self._text += text
        pieces: list[Piece] = []
        while True:
            mark = _CLOSE if self._is_inside else _OPEN
            before, found, after = self._text.partition(mark)
            if not found:
                break
            pieces += self._call(before) if self._is_inside else self._content(before.rstrip())
            self._text, self._is_inside = after, not self._is_inside
        if not self._is_inside:
            kept = _length_held(self._text)
            end = len(self._text) - kept
            pieces += self._content(self._text[:end])
            self._text = self._text[end:]
        return pieces

    def finish(self) -> list[Piece]:
        """Return what is left: the text has ended."""
        rest, self._text = self._text, ""
        return self._call(rest) if self._is_inside else self._content(rest)

    def _content(self, text: str) -> list[Piece]:
        if self._num_calls and not self._has_content:
            text = text.lstrip()
        if not text:
            return []
        self._has_content = True
        return [text]

    def _call(self, text: str) -> list[Piece]:
        call = _parse(text)
        if call is None:
            return self._content(_OPEN + text + _CLOSE)
        self._num_calls += 1
        self._has_content = False
        return [call]


def _parse(text: str) -> Call | None:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", {})
    if isinstance(arguments, str):
        return Call(data["name"], arguments)
    return Call(data["name"], json.dumps(arguments, ensure_ascii=False))


def _length_held(text: str) -> int:
    """Return the length of the end of a text that may begin a call, space before it included."""
    begun = next((n for n in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:n])), 0)
    return len(text) - len(text[: len(text) - begun].rstrip())
