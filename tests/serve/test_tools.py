"""Calls of tools in a text that arrives in parts."""

from __future__ import annotations

import pytest

from diffuspec.serve.openai.tools import Call, CallReader, Piece

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CALL = Call("weather", '{"city": "Köln"}')

TEXTS = [
    ("plain text <b> and 1 < 2 ", ["plain text <b> and 1 < 2 "]),
    (ONE, [CALL]),
    (f"I look.\n{ONE}", ["I look.", CALL]),
    (f"{ONE}\n{ONE}\n", [CALL, CALL]),
    (f"{ONE} so it is", [CALL, "so it is"]),
    ('<tool_call>{"name": "f"}</tool_call>', [Call("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": "{}"}', [Call("f", "{}")]),
    ("<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
    ('<tool_call>{"name": 1}</tool_call>!', ['<tool_call>{"name": 1}</tool_call>!']),
    ("ends with <tool_", ["ends with <tool_"]),
    ("", []),
]


def joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces with neighbouring texts made one."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_content_and_calls_are_told_apart_however_the_text_arrives(text, expected, size):
    reader = CallReader()
    pieces = [
        piece for at in range(0, len(text), size) for piece in reader.read(text[at : at + size])
    ]
    assert joined(pieces + reader.finish()) == expected


def test_text_that_cannot_begin_a_call_is_not_held_back():
    reader = CallReader()
    assert reader.read("one < two <tool") == ["one < two"]
    assert reader.read("kit> three") == [" <toolkit> three"]
