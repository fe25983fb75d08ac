"""What vLLM's own tests give its parsers to read, in our words: the same calls come of it.

Where vLLM reads a whole text and a stream in two ways, ours is that of the stream; space between a
call and content is dropped.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest

from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.reading.pieces import calls_in
from diffuspec.serve.openai.reading.readers import make_reader

_OBJECT = {"type": "object"}
_MAYBE = [{"type": "integer"}, {"type": "null"}]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": _OBJECT | {"properties": keys}}}
    for name, keys in {
        "find": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "list_open": {},
        "area": {"shape": {"type": "string"}, "sides": _OBJECT, "digits": {"type": "integer"}},
        "types": {
            "real": {"type": "number"},
            "is_on": {"type": "boolean"},
            "maybe": {"anyOf": _MAYBE},
            "either": {"type": ["integer", "null"]},
        },
    }.items()
]
Said: TypeAlias = tuple[str, Any]
FIND: Said = ("find", {"query": "owls"})
LIST: Said = ("list_open", {})
SAYS_FIND = '{"name": "find", "parameters": {"query": "owls"}}'
SAYS_LIST = '{"name": "list_open", "parameters": {}}'
DEEP = {"a": {"b": {"c": {"d": {"e": "deep"}}}}}
BRACES = {"query": "a {b} [c]", "in": {"it": 'said "{d}"'}}


def tags(name: str, **values: str) -> str:
    rows = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    return f"<function={name}>\n{rows}</function>"


ODD: dict[str, Any] = {"h": None, "i": True, "j": ["k", "l"], "m": {}, "n": []}
ADD = '{"name": "add", "arguments":{"a": 1}}'
BOX = '{"w": 1, \n "h": 2}'
AREA = f"<tool_call>\n{tags('area', shape='box', sides=BOX, digits='2')}\n</tool_call>"
TYPES = tags("types", real="3.14", is_on="true", maybe="5", either="6")


CASES: dict[str, list[tuple[str, list[Said], str]]] = {
    # by parser: what a model says, the calls, and the content beside them
    "hermes": [
        ('<tool_call>\n{"name": "find", "arguments": {"on": true}}', [("find", {"on": True})], ""),
        ('<tool_call>{"name": "find","arguments": {"query":"owls"}}</tool_call>', [FIND], ""),
        (
            '<tool_call>{"name": "find", "arguments": "{\\"query\\": \\"owls\\"}"}</tool_call>',
            [FIND],
            "",
        ),
        ('<tool_call>{"name": "find", "arguments": "owls"}</tool_call>', [("find", "owls")], ""),
    ],
    "llama3_json": [
        (SAYS_FIND + "; " + SAYS_LIST + " ; " + SAYS_FIND, [FIND, LIST, FIND], ""),
        (SAYS_FIND + ";\n" + SAYS_LIST, [FIND, LIST], ""),
        (SAYS_FIND + "\n" + SAYS_LIST, [FIND, LIST], ""),
        (SAYS_FIND.replace("parameters", "arguments"), [FIND], ""),
        (json.dumps({"name": "find", "parameters": DEEP}), [("find", DEEP)], ""),
        (json.dumps({"name": "find", "parameters": BRACES}), [("find", BRACES)], ""),
        (SAYS_FIND + " I used {find} for this.", [FIND], "I used {find} for this."),
        (SAYS_FIND + ' It was {"query": "owls"}', [FIND], 'It was {"query": "owls"}'),
    ],
    "pythonic": [
        ("[find(query='owls')]", [FIND], ""),
        (
            "[f(a='x', b=37, c={'d': 'e', 'f': 'g'}, h=None, i=True, j=['k', 'l'], m={}, n=[])]",
            [("f", {"a": "x", "b": 37, "c": {"d": "e", "f": "g"}, **ODD})],
            "",
        ),
        (r"""[f(a='Martha\'s', b='\"cool\"')]""", [("f", {"a": "Martha's", "b": '"cool"'})], ""),
        ("[find(query='owls'), list_open(), f(a=[])]", [FIND, LIST, ("f", {"a": []})], ""),
    ],
    "mistral": [
        (
            '[TOOL_CALLS] [{"arguments":{"name": "Ann"}, "name": "age"}]',
            [("age", {"name": "Ann"})],
            "",
        ),
        (
            '[TOOL_CALLS][{"name": "add", "arguments":{"a": 3.5, "b": 4}}]',
            [("add", {"a": 3.5, "b": 4})],
            "",
        ),
        (f"Hello[TOOL_CALLS] [{ADD}]", [("add", {"a": 1})], "Hello"),
        ('[TOOL_CALLS] [{"name": "add", "arguments":{}}]\nand more', [("add", {})], "and more"),
        (
            '[TOOL_CALLS]add{"a": 3.5}[TOOL_CALLS]times{"a": 3}',
            [("add", {"a": 3.5}), ("times", {"a": 3})],
            "",
        ),
    ],
    "qwen3_coder": [
        (f"Sure!<tool_call>\n{tags('find', query='owls')}\n</tool_call>", [FIND], "Sure!"),
        (tags("find", query="owls"), [FIND], ""),
        (AREA, [("area", {"shape": "box", "sides": {"w": 1, "h": 2}, "digits": 2})], ""),
        (TYPES, [("types", {"real": 3.14, "is_on": True, "maybe": 5, "either": 6})], ""),
    ],
}
NO_CALLS = {
    "hermes": ["This is no call."],
    "llama3_json": ['{"parameters": {}}', '{"name": "find"}'],
    "pythonic": ["How can I help you today?", "[f(a='x 'y' 'z), g(b='p 'q' 'r)]"],
    "mistral": ["This is a test", "[TOOL_CALLS] not JSON at all"],
    "qwen3_coder": ["This is a test"],
}
ALL = [(parser, *case) for parser, cases in CASES.items() for case in cases]
ALL += [(parser, text, [], text) for parser, texts in NO_CALLS.items() for text in texts]


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize(("parser", "text", "calls", "content"), ALL)
def test_calls_are_those_of_vllm(parser, text, calls, content, size):
    reader = make_reader(Conventions(parser, "none"), TOOLS, "over")
    pieces = [p for at in range(0, len(text), size) for p in reader.read(text[at : at + size])]
    pieces += reader.finish()
    found = [(call.name, json.loads(call.arguments)) for call in calls_in(pieces)]
    assert found == calls
    assert "".join(p for p in pieces if isinstance(p, str)) == content
