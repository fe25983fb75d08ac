"""Calls that models write in tags, as Qwen3-Coder does.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from diffuspec.serve.openai.call_grammars import is_text, resolved
from diffuspec.serve.openai.reading.pieces import (
    SPACE,
    CallPart,
    MarkedCallReader,
    Piece,
    first_mark,
    length_begun,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"([^<>\s]{1,256})>")
_NAME_BEGUN = re.compile(r"[^<>\s]{0,256}")
_VALUE_ENDS = (_PARAMETER_END, _PARAMETER, _FUNCTION_END)


class TagCallReader(MarkedCallReader):
    """Separates content from calls. Values have the types in the functions' schemas."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """schemas: by function name, those of its parameters."""
        super().__init__(self._in_content)
        self._schemas = schemas
        self._function = ""
        self._num_values = 0  # values of the current call so far
        self._is_text = False  # whether the current value is a text
        self._value_begun = False
        self._num_searched = 0  # characters of the value already searched for its end

    @property
    def is_within_arguments(self) -> bool:
        return self._read_on in (self._in_function, self._in_value)

    def finish(self) -> list[Piece]:
        rest = self._take_rest()
        if self._read_on == self._in_content:
            return self._content(rest)
        if self._read_on in (self._in_head, self._in_name):
            return self._content(self._mark + rest)
        if self._read_on == self._in_value and rest and self._is_text:
            return [CallPart(None, _escaped(rest))]
        return []

    def _in_content(self, pieces: list[Piece]) -> bool:
        marks = (OPEN, _FUNCTION)
        found = first_mark(self._text, marks)
        if found is None:
            kept = self._text[: len(self._text) - length_begun(self._text, marks)].rstrip(SPACE)
            pieces += self._content(kept)
            self._text = self._text[len(kept) :]
            return False
        place, mark = found
        before = self._text[:place].rstrip(SPACE)
        pieces += self._content(before)
        end = place + len(OPEN) * (mark == OPEN)
        self._mark, self._text = self._text[len(before) : end], self._text[end:]
        self._read_on = self._in_head if mark == OPEN else self._in_name
        return True

    def _in_head(self, pieces: list[Piece]) -> bool:
        """Read up to the first function in a tag; a tag without one is content."""
        text = self._text.lstrip(SPACE)
        if text.startswith(_FUNCTION):
            self._text, self._read_on = text, self._in_name
            return True
        if _FUNCTION.startswith(text):
            return False
        pieces += self._content(self._mark)
        self._read_on = self._in_content
        return True

    def _in_name(self, pieces: list[Piece]) -> bool:
        rest = self._text[len(_FUNCTION) :]
        if found := _NAME.match(rest):
            self._function, self._num_values = found[1], 0
            self._num_calls += 1
            self._has_content = False
            pieces.append(CallPart(found[1], ""))
            self._text, self._read_on = rest[found.end() :], self._in_function
            return True
        if _NAME_BEGUN.fullmatch(rest):
            return False
        pieces += self._content(self._mark + _FUNCTION)
        self._text, self._read_on = rest, self._in_content
        return True

    def _in_function(self, pieces: list[Piece]) -> bool:
        text = self._text.lstrip(SPACE)
        if text.startswith(_PARAMETER):
            found = _NAME.match(text[len(_PARAMETER) :])
            if found is None:
                return False
            self._begin_value(found[1], pieces)
            self._text = text[len(_PARAMETER) + found.end() :]
            return True
        marks = (_PARAMETER, _FUNCTION_END)
        if not text or any(mark != text and mark.startswith(text) for mark in marks):
            return False
        if text.startswith(_FUNCTION_END):
            text = text[len(_FUNCTION_END) :]
        pieces.append(CallPart(None, "}" if self._num_values else "{}"))
        self._text, self._read_on = text, self._after_function
        return True

    def _begin_value(self, key: str, pieces: list[Piece]) -> None:
        whole = self._schemas.get(self._function, {})
        properties = resolved(whole.get("properties"), whole)
        self._is_text = is_text(resolved(properties.get(key), whole))
        begin = ", " if self._num_values else "{"
        pieces.append(CallPart(None, f"{begin}{json.dumps(key, ensure_ascii=False)}: "))
        self._num_values += 1
        self._value_begun, self._num_searched, self._read_on = False, 0, self._in_value

    def _in_value(self, pieces: list[Piece]) -> bool:
        if not self._value_begun:
            if not self._text:
                return False
            self._text = self._text.removeprefix("\n")
            self._value_begun = True
            if self._is_text:
                pieces.append(CallPart(None, '"'))
        found = first_mark(self._text, _VALUE_ENDS, self._num_searched)
        if found is None:
            if self._is_text:
                lines = [f"\n{mark}" for mark in _VALUE_ENDS]
                held = length_begun(self._text, [*lines, *_VALUE_ENDS])
                kept = self._text[: len(self._text) - held]
                pieces += [CallPart(None, _escaped(kept))] if kept else []
                self._text = self._text[len(kept) :]
            else:
                self._num_searched = max(0, len(self._text) - len(_PARAMETER_END))
            return False
        place, mark = found
        value = self._text[:place].removesuffix("\n")
        pieces.append(CallPart(None, f'{_escaped(value)}"' if self._is_text else _as_json(value)))
        self._text = self._text[place + len(mark) * (mark == _PARAMETER_END) :]
        self._read_on = self._in_function
        return True

    def _after_function(self, pieces: list[Piece]) -> bool:
        text = self._text.lstrip(SPACE)
        if not text or (text != CLOSE and CLOSE.startswith(text)):
            return False
        self._text, self._read_on = text.removeprefix(CLOSE), self._in_content
        return True


def _escaped(text: str) -> str:
    """Return the content between the quotes of a JSON text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(value: str) -> str:
    """Return a value unchanged if it is JSON, else as a JSON text."""
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return value.strip()
