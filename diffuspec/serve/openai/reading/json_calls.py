"""Calls that models write as JSON objects: Hermes and Qwen, Llama 3, Mistral.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from diffuspec.serve.openai.reading.pieces import (
    SPACE,
    CallPart,
    MarkedCallReader,
    Piece,
    first_mark,
    length_begun,
)

_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_NAMED = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_NAMED_BEGUN = re.compile(r"[\w.-]*\s*(?:\[[A-Z_]*\]?\s*\w*\s*){0,2}")


@dataclass(frozen=True, slots=True)
class JsonForm:
    """A family's format of calls, around their JSON."""

    mark: str  # text that begins a block of calls
    close: str = ""  # text that ends a block; "": blocks have no end
    between: str = ",[]"  # characters allowed between the calls of a block, besides space
    may_be_bare: bool = False  # an answer that begins with a known call needs no mark
    may_name_outside: bool = False  # the name may come before the object of arguments


HERMES = JsonForm("<tool_call>", "</tool_call>")
LLAMA3 = JsonForm("<|python_tag|>", between=";,", may_be_bare=True)
MISTRAL = JsonForm("[TOOL_CALLS]", may_name_outside=True)


class JsonCallReader(MarkedCallReader):
    """Separates content from calls; space around calls is dropped.

    Arguments are passed on as they arrive, once the name before them is known; a call with another
    order, or with arguments as a text, is passed on when it is complete. Anything that is not a
    call is content, including its marks.
    """

    def __init__(self, form: JsonForm, names: Collection[str] = ()) -> None:
        """`names`: names of the available functions, for calls without marks."""
        super().__init__(self._in_content)
        self._form = form
        self._names = names
        self._object = _JsonObject()
        self._num_scanned = 0
        self._is_named_outside = False
        self._has_begun = False

    @property
    def is_within_arguments(self) -> bool:
        return self._read_on == self._in_arguments

    def finish(self) -> list[Piece]:
        rest = self._take_rest()
        if self._read_on in (self._in_arguments, self._after_arguments):
            return []
        if self._read_on == self._in_head and (call := self._call_in(rest)) is not None:
            return self._begin(call)
        if self._read_on == self._in_head and not self._mark:  # the block already has calls
            rest = rest.strip(SPACE + self._form.between)
        return self._content(self._mark + rest)

    def _in_content(self, pieces: list[Piece]) -> bool:
        if self._form.may_be_bare and not self._has_begun:
            begun = self._text.lstrip(SPACE)
            if begun.startswith("{"):
                self._has_begun = True
                return self._go_to_head("", self._text)
            if not begun:
                return False
        found = first_mark(self._text, [self._form.mark])
        if found is None:
            kept = self._text[: len(self._text) - length_begun(self._text, [self._form.mark])]
            kept = kept.rstrip(SPACE) if self._text else ""
            pieces += self._content(kept)
            self._text = self._text[len(kept) :]
            return False
        before = self._text[: found[0]].rstrip(SPACE)
        end = found[0] + len(found[1])
        pieces += self._content(before)
        return self._go_to_head(self._text[len(before) : end], self._text[end:])

    def _go_to_head(self, mark: str, text: str) -> bool:
        self._mark, self._text, self._read_on = mark, text, self._in_head
        self._object, self._num_scanned = _JsonObject(), 0
        return True

    def _in_head(self, pieces: list[Piece]) -> bool:
        form = self._form
        text = self._without_separators()
        if not text:
            return False
        if form.close and text.startswith(form.close):
            dropped = self._text[: len(self._text) - len(text)] if self._mark else ""
            if self._mark:  # a block without a call
                pieces += self._content(self._mark + dropped + form.close)
            return self._go_to_content(text[len(form.close) :])
        if form.mark and text.startswith(form.mark):
            pieces += self._content(self._mark)
            return self._go_to_head(form.mark, text[len(form.mark) :])
        if text.startswith("{"):
            return self._in_object(text, pieces)
        if form.may_name_outside and not text.startswith("{"):
            if named := _NAMED.match(text):
                return self._begin_arguments(named[1], text[named.end() :], pieces, outside=True)
            if _NAMED_BEGUN.fullmatch(text):
                return False
        if form.mark.startswith(text) or form.close.startswith(text):
            return False
        rest, self._mark = self._mark + (self._text if self._mark else text), ""
        pieces += self._content(rest[:1])
        return self._go_to_content(rest[1:])

    def _without_separators(self) -> str:
        """Return the text from the first character that cannot be a separator between calls."""
        text, mark = self._text, self._form.mark
        for place, letter in enumerate(text):
            begins_mark = mark.startswith(text[place : place + len(mark)])
            if begins_mark or letter not in SPACE + self._form.between:
                return text[place:]
        return ""

    def _in_object(self, text: str, pieces: list[Piece]) -> bool:
        """Read a call, starting at its opening brace."""
        head = _HEAD.match(text)
        if head and self._is_known(name := _read_json(head[1])):
            return self._begin_arguments(name, text[head.end() :], pieces, outside=False)
        place = len(self._text) - len(text)
        start = max(self._num_scanned, place)
        size = self._object.read(self._text[start:])
        self._num_scanned = start + size
        if not self._object.has_ended:
            return False
        whole, rest = self._text[place : self._num_scanned], self._text[self._num_scanned :]
        call = self._call_in(whole)
        if call is None:
            pieces += self._content(self._mark + self._text[:place] * bool(self._mark) + whole)
            return self._go_to_content(rest)
        pieces += self._begin(call)
        return self._go_to_head("", rest)

    def _begin_arguments(self, name: str, rest: str, pieces: list[Piece], *, outside: bool) -> bool:
        pieces += self._begin(CallPart(name, ""))
        self._object, self._is_named_outside = _JsonObject(), outside
        self._text, self._read_on = rest, self._in_arguments
        return True

    def _in_arguments(self, pieces: list[Piece]) -> bool:
        end = self._object.read(self._text)
        if end:
            pieces.append(CallPart(None, self._text[:end]))
        self._text = self._text[end:]
        if not self._object.has_ended:
            return False
        if self._is_named_outside:
            return self._go_to_head("", self._text)
        self._object = _JsonObject(depth=1)  # the object that contains the arguments
        self._read_on = self._after_arguments
        return True

    def _after_arguments(self, pieces: list[Piece]) -> bool:
        """Skip the rest of a call's object, such as an id."""
        text = self._text.lstrip(SPACE)
        if not text:
            return False
        if self._object.is_unread and text[0] not in ",}":
            return self._go_to_head("", text)
        end = self._object.read(text)
        self._text = text[end:]
        return self._object.has_ended and self._go_to_head("", self._text)

    def _go_to_content(self, text: str) -> bool:
        self._mark, self._text, self._read_on = "", text, self._in_content
        return True

    def _begin(self, call: CallPart) -> list[Piece]:
        self._num_calls += 1
        self._has_content = False
        self._mark = ""
        return [call]

    def _content(self, text: str) -> list[Piece]:
        content = super()._content(text)
        self._has_begun |= bool(content)
        return content

    def _is_known(self, name: object) -> bool:
        return isinstance(name, str) and (bool(self._mark) or self._is_free or name in self._names)

    @property
    def _is_free(self) -> bool:
        """Return whether a mark announces calls, which may then have any name."""
        return self._num_calls > 0 or not self._form.may_be_bare

    def _call_in(self, text: str) -> CallPart | None:
        """Return the call in a text; None if it is not a complete call."""
        data = _read_json(text)
        if not isinstance(data, dict) or not self._is_known(data.get("name")):
            return None
        is_bare = self._form.may_be_bare and not self._mark
        if is_bare and not {"arguments", "parameters"} & data.keys():
            return None
        arguments = data.get("arguments", data.get("parameters", {}))
        if not (isinstance(arguments, str) and isinstance(_read_json(arguments), dict)):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return CallPart(data["name"], arguments)


class _JsonObject:
    """Finds the end of a JSON object in a text that arrives in parts."""

    def __init__(self, depth: int = 0) -> None:
        """depth: number of brackets that are already open."""
        self.has_ended = False
        self.is_unread = True
        self._depth = depth
        self._is_in_text = False
        self._is_escaped = False

    def read(self, text: str) -> int:
        """Return how many characters of the next part belong to the object."""
        self.is_unread = self.is_unread and not text
        for place, letter in enumerate(text):
            if self._is_in_text:
                self._is_in_text = self._is_escaped or letter != '"'
                self._is_escaped = letter == "\\" and not self._is_escaped
            elif letter == "<":  # not JSON, but perhaps the end of the call
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
    """Return the value of a JSON text; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
