"""Calls of tools in a text that arrives in parts."""

from __future__ import annotations

import pytest

from diffuspec.serve.openai.tools import Call, CallPart, CallReader, Piece, calls_in

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
    (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"}"}}</tool_call>',
        [Call("f", '{"a": "</tool_call>\\"}"}')],
    ),
    (f'<tool_call>{{"name": "f", "arguments": {{bad</tool_call>{ONE}', [Call("f", "{bad"), CALL]),
    ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [Call("f", '{"a": 1}')]),
    ('<tool_call>{"name": "f", "arguments": {"a": "x', [Call("f", '{"a": "x')]),
    ('<tool_call>{"name": "f', ['<tool_call>{"name": "f']),
    ("ends with <tool_", ["ends with <tool_"]),
    ("", []),
]


def joined(pieces: list[Piece]) -> list[str | Call]:
    """The pieces with those of one text, or of one call, made one."""
    found: list[str | Call] = []
    for piece in pieces:
        latest = found[-1] if found else None
        if isinstance(piece, str) and isinstance(latest, str):
            found[-1] = latest + piece
        elif isinstance(piece, str):
            found.append(piece)
        elif piece.name is not None:
            found += calls_in([piece])
        else:
            assert isinstance(latest, Call), "more of a call comes right after it"
            found[-1] = Call(latest.name, latest.arguments + piece.arguments)
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


def test_arguments_are_passed_on_as_they_are_written():
    reader = CallReader()
    assert reader.read('<tool_call>{"name": "f", "argu') == []
    assert reader.read('ments": {"a": [1') == [CallPart("f", ""), CallPart(None, '{"a": [1')]
    assert reader.read("]}") == [CallPart(None, "]}")]
    assert reader.read("}</tool_") == reader.read("call>") == []
