"""Calls written as a Python list, as by Llama 3.2 and Llama 4.

[get_weather(city="Paris"), get_time()]
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

from diffuspec.serve.openai.reading.pieces import SPACE, CallPart, Piece, StateReader

_MARKS = ("<|python_start|>", "<|python_end|>")  # marks of Llama 4
_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_LIST_BEGUN = re.compile(r"\[\s*([A-Za-z_][\w.]*)?\s*")
_HEAD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*\(")
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_NAMES = {"true": True, "false": False, "null": None}  # JSON's names, which models mix in


class PythonicCallReader(StateReader):
    """Reads an answer that is a list of calls; any other answer is content.

    A call is passed on when it is complete. Text that cannot be a call is content, as is everything
    after it.
    """

    is_reasoning = False
    is_within_arguments = False

    def __init__(self) -> None:
        super().__init__(self._at_start)
        self._num_calls = 0
        self._scan = _Scan()  # brackets and quotes of the current call
        self._num_scanned = 0

    def finish(self) -> list[Piece]:
        rest = self._take_rest()
        return [rest] if rest.strip(SPACE) else []

    def _at_start(self, pieces: list[Piece]) -> bool:
        begun = self._text.lstrip(SPACE).removeprefix(_MARKS[0]).lstrip(SPACE)
        if _LIST.match(begun):
            self._text, self._read_on = begun[1:], self._in_list
            return True
        if not begun or _LIST_BEGUN.fullmatch(begun) or _MARKS[0].startswith(begun):
            return False
        self._read_on = self._in_content
        return True

    def _in_list(self, pieces: list[Piece]) -> bool:
        if not self._num_scanned:
            self._text = self._text.lstrip(SPACE + ",")
            if self._text.startswith("]"):
                self._text, self._read_on = self._text[1:], self._after_list
                return True
        new = self._text[self._num_scanned :]
        ends = (self._num_scanned + end for end, letter in self._scan.read(new) if letter != ",")
        end = next(ends, None)
        self._num_scanned = len(self._text)
        if end is None:
            return False
        call = _parse(self._text[:end])
        if call is None:
            pieces += [] if self._num_calls else ["["]
            self._read_on = self._in_content
            return True
        self._num_calls += 1
        pieces.append(call)
        self._text, self._scan, self._num_scanned = self._text[end:], _Scan(), 0
        return True

    def _after_list(self, pieces: list[Piece]) -> bool:
        text = self._text.lstrip(SPACE)
        if not text or (text != _MARKS[1] and _MARKS[1].startswith(text)):
            return False
        self._text = text.removeprefix(_MARKS[1]).lstrip(SPACE)
        self._read_on = self._in_content
        return True

    def _in_content(self, pieces: list[Piece]) -> bool:
        if self._text:
            pieces.append(self._text)
            self._text = ""
        return False


class _Scan:
    """Finds commas and closing brackets outside strings, in a text that arrives in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def read(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the ends of those inside the outermost bracket, or that close it."""
        for end, letter in enumerate(text, start=1):
            if self._quote:
                if letter == self._quote and not self._is_escaped:
                    self._quote = ""
                self._is_escaped = letter == "\\" and not self._is_escaped
            elif letter in "\"'":
                self._quote, self._is_escaped = letter, False
            elif letter in "([{":
                self._depth += 1
            elif letter in ")]}":
                self._depth -= 1
                if self._depth <= 0:
                    yield end, letter
            elif letter == "," and self._depth == 1:
                yield end, letter


def _parse(text: str) -> CallPart | None:
    """Return the call in a text; None unless it is a call with named literals as arguments."""
    head = _HEAD.match(text)
    if head is None:
        return None
    values: dict[str, Any] = {}
    start = head.end()
    for end, letter in _Scan().read(text):
        part = text[start : end - 1].strip(SPACE)
        named = _NAMED.match(part)
        if named is None:
            return CallPart(head[1], "{}") if letter == ")" and not (part or values) else None
        try:
            values[named[1]] = _value(part[named.end() :])
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return None
        start = end
    return CallPart(head[1], json.dumps(values, ensure_ascii=False))


def _value(text: str) -> Any:
    """Return a value written in JSON or Python."""
    try:
        return json.loads(text)
    except ValueError:
        with warnings.catch_warnings():  # Python warns of unknown escapes
            warnings.simplefilter("ignore")
            return _literal(ast.parse(text.strip(), mode="eval").body)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _literal(key) for key in node.keys]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    found = ast.literal_eval(node)
    json.dumps(found)  # rejects bytes and complex numbers
    return found
