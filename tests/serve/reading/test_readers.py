"""Reasoning, content and calls are told apart however an answer arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.reading.pieces import Call, CallPart, Piece, Reader, Thought, calls_in
from diffuspec.serve.openai.reading.readers import make_reader

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "clock"}},
]
ULM = '{"city": "Ulm"}'
CALL = Call("weather", ULM)
CLOCK = Call("clock", "{}")
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>'
LLAMA = f'{{"name": "weather", "parameters": {ULM}}}'
TAGS = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n"
    "</function>\n</tool_call>"
)
HARMONY_CALL = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ULM}"

CASES: dict[str, list[tuple[str, list[str | Call | Thought]]]] = {
    "hermes": [
        ("plain text <b> and 1 < 2 ", ["plain text <b> and 1 < 2 "]),
        (HERMES, [CALL]),
        (f"I look.\n{HERMES}", ["I look.", CALL]),
        (f"{HERMES}\n{HERMES}\n", [CALL, CALL]),
        (f"Before {HERMES} between {HERMES} after", ["Before", CALL, "\nbetween", CALL, "\nafter"]),
        ('<tool_call>{"name": "f"}</tool_call>', [Call("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{}"}', [Call("f", "{}")]),
        ("<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
        ("<tool_call></tool_call> x", ["<tool_call></tool_call> x"]),
        ('<tool_call>{"name": 1}</tool_call>!', ['<tool_call>{"name": 1}</tool_call>!']),
        ("a stray </tool_call> mark", ["a stray </tool_call> mark"]),
        ("never closed <tool_call> so it is", ["never closed <tool_call> so it is"]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"}"}}</tool_call>',
            [Call("f", '{"a": "</tool_call>\\"}"}')],
        ),
        (
            f'<tool_call>{{"name": "f", "arguments": {{bad</tool_call>{HERMES}',
            [Call("f", "{bad"), CALL],
        ),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [Call("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', [Call("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {"a": "x', [Call("f", '{"a": "x')]),
        ('<tool_call>{"name": "f', ['<tool_call>{"name": "f']),
        (
            '<tool_call>{"name": "f", "arguments": {}}\n{"name": "g"}</tool_call>x',
            [Call("f", "{}"), Call("g", "{}"), "x"],
        ),
        (
            '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_call>',
            [Call("f", "{}"), Call("g", "{}")],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": "}"}</tool_call>x',
            [Call("f", '{"a": 1}'), "x"],
        ),
        ('<tool_call>{"name": "f", "arguments": {}} and more', [Call("f", "{}"), "and more"]),
        ("ends with <tool_", ["ends with <tool_"]),
        ("", []),
    ],
    "llama3_json": [
        (LLAMA, [CALL]),
        (f"<|python_tag|>{LLAMA}", [CALL]),
        (f'{LLAMA}; {{"name": "clock", "parameters": {{}}}}', [CALL, CLOCK]),
        (f"\n{LLAMA.replace('parameters', 'arguments')}", [CALL]),
        ('{"name": "Rex", "age": 7}', ['{"name": "Rex", "age": 7}']),
        ('{"name": "Rex", "parameters": {}}', ['{"name": "Rex", "parameters": {}}']),
        (f"See {LLAMA}", [f"See {LLAMA}"]),
        ('{"name": "weather", "parameters": {"city": "U', [Call("weather", '{"city": "U')]),
        ('{"a": [1, 2]} is JSON', ['{"a": [1, 2]}', " is JSON"]),
        ("{not JSON", ["{not JSON"]),
    ],
    "mistral": [
        (f'[TOOL_CALLS][{{"name": "weather", "arguments": {ULM}}}]', [CALL]),
        (
            f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ULM}}}, '
            '{"arguments": {}, "name": "clock"}]',
            [CALL, CLOCK],
        ),
        (f"[TOOL_CALLS]weather[ARGS]{ULM}[TOOL_CALLS]clock[ARGS]{{}}", [CALL, CLOCK]),
        (f"Look:[TOOL_CALLS]weather{ULM}", ["Look:", CALL]),
        (f"[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{ULM}", [CALL]),
        ("[TOOL_CALLS]none of these", ["[TOOL_CALLS]none of these"]),
        ("[TOOL_CALLS]weather", ["[TOOL_CALLS]weather"]),
        ("[1, 2] is a list", ["[1, 2] is a list"]),
    ],
    "qwen3_coder": [
        (TAGS, [CALL]),
        (f"First.\n{TAGS}\n{TAGS} so", ["First.", CALL, CALL, "\nso"]),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\na\n<b>\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            [Call("weather", '{"city": "a\\n<b>", "days": 3}')],
        ),
        ("<tool_call>\n<function=clock>\n</function>\n</tool_call>", [CLOCK]),
        ("<function=clock></function>", [CLOCK]),
        (
            "<tool_call><function=weather><parameter=days>many</parameter></function></tool_call>",
            [Call("weather", '{"days": "many"}')],
        ),
        (
            '<tool_call>\n<function=weather>\n<parameter=city>\nsay "hi',
            [Call("weather", '{"city": "say \\"hi')],
        ),
        ("<tool_call>nothing</tool_call>", ["<tool_call>nothing</tool_call>"]),
        ("1 < 2 <function", ["1 < 2 <function"]),
    ],
    "pythonic": [
        ('[weather(city="Ulm")]', [CALL]),
        ('[weather(city="Ulm"), clock()]', [CALL, CLOCK]),
        (
            "[f(a=[1, -2.5], b={'k': None}, c=true, d='x\\'y)')]",
            [Call("f", '{"a": [1, -2.5], "b": {"k": null}, "c": true, "d": "x\'y)"}')],
        ),
        ('<|python_start|>[weather(city="Ulm")]<|python_end|>', [CALL]),
        ("[1, 2, 3]", ["[1, 2, 3]"]),
        ("[f(1)]", ["[f(1)]"]),
        ("[f(open('x'))] so", ["[f(open('x'))] so"]),
        ('[weather(city="U', ['weather(city="U']),
        ("plain", ["plain"]),
    ],
    "openai": [
        (
            "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Yes.",
            [Thought("I think."), "Yes."],
        ),
        (HARMONY_CALL, [CALL]),
        (
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary"
            f"<|message|>I look.<|end|><|start|>assistant{HARMONY_CALL}",
            [Thought("Hm"), "I look.", CALL],
        ),
        (f" to=functions.weather<|channel|>commentary json<|message|>{ULM}", [CALL]),
        ("no channel at all", ["no channel at all"]),
        ("<|channel|>analysis<|message|>cut", [Thought("cut")]),
    ],
}
ALL = [(name, *case) for name, cases in CASES.items() for case in cases]


def reader_of(name: str, reasoning: str = "none", thinks: str = "open") -> Reader:
    conventions = Conventions(name, reasoning)  # type: ignore[arg-type]
    return make_reader(conventions, TOOLS, thinks)  # type: ignore[arg-type]


def read(reader: Reader, parts: Sequence[str]) -> list[Piece]:
    pieces = [piece for part in parts for piece in reader.read(part)]
    return pieces + reader.finish()


def joined(pieces: Sequence[Piece]) -> list[str | Call | Thought]:
    """The pieces with those of one text, of one thought or of one call, made one."""
    found: list[str | Call | Thought] = []
    for piece in pieces:
        latest = found[-1] if found else None
        if isinstance(piece, str) and isinstance(latest, str):
            found[-1] = latest + piece
        elif isinstance(piece, Thought) and isinstance(latest, Thought):
            found[-1] = Thought(latest.text + piece.text)
        elif not isinstance(piece, CallPart):
            found.append(piece)
        elif piece.name is not None:
            found += calls_in([piece])
        else:
            assert isinstance(latest, Call), "more of a call comes right after it"
            found[-1] = Call(latest.name, latest.arguments + piece.arguments)
    return found


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("name", "text", "expected"), ALL)
def test_what_each_family_writes_is_told_apart(name, text, expected, size):
    found = joined(read(reader_of(name), cut(text, size)))
    for kind in (str, Call, Thought):
        mine, right = ([x for x in one if isinstance(x, kind)] for one in (found, expected))
        assert "".join(map(str, mine)) == "".join(map(str, right))


MARKS = [
    "<tool_call>", "</tool_call>", "<function=weather>", "<parameter=city>", "</parameter>",
    "</function>", '{"name": "weather", "arguments": ', ULM, "}", "{", "[", "]", '"', "\\", ", ",
    "[TOOL_CALLS]", "[ARGS]", "weather", "<|python_tag|>", "(", "city=", "'x'", ")", "\n", " ",
    "<think>", "</think>", "<|channel|>", "<|message|>", "analysis", "<|end|>", "to=f ", "ä", "<",
]  # fmt: skip


@pytest.mark.parametrize("reasoning", ["none", "qwen3"])
@pytest.mark.parametrize("name", [*CASES, "none"])
@given(words=st.lists(st.sampled_from(MARKS), max_size=14), sizes=st.lists(st.integers(1, 9)))
def test_pieces_do_not_depend_on_how_an_answer_is_cut(name, reasoning, words, sizes):
    text = "".join(words)
    parts, rest = [], text
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    at_once = joined(read(reader_of(name, reasoning), [text]))
    assert joined(read(reader_of(name, reasoning), [*parts, rest])) == at_once
    assert joined(read(reader_of(name, reasoning), list(text))) == at_once


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "none"])
@given(words=st.lists(st.sampled_from(MARKS), max_size=14))
def test_no_word_of_an_answer_is_lost(name, words):
    """What is neither in a call nor content is a mark, space, or the JSON around arguments."""
    text = "".join(words) + "word"
    found = joined(read(reader_of(name), [text]))
    shown = "".join(one if isinstance(one, str) else str(one) for one in found)
    assert "word" in shown or (found and isinstance(found[-1], Call))
    assert shown.count("ä") == text.count("ä") or any(isinstance(one, Call) for one in found)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("reasoning", "thinks", "text", "expected"),
    [
        ("qwen3", "open", "<think>\nHm.\n</think>\n\nYes.", [Thought("Hm."), "Yes."]),
        ("qwen3", "open", "\n<think>a\n\nb</think>Yes", [Thought("a\n\nb"), "Yes"]),
        ("qwen3", "open", "Yes, 1 < 2. ", ["Yes, 1 < 2. "]),
        ("qwen3", "open", "<think>never over ", [Thought("never over")]),
        ("qwen3", "open", "<think>\n\n</think>\n\nx", ["x"]),
        ("qwen3", "open", "x <think>y</think>", ["x <think>y</think>"]),
        ("qwen3", "inside", "Hm.</think>Yes </think>", [Thought("Hm."), "Yes </think>"]),
        ("qwen3", "over", "<think>x</think>", ["<think>x</think>"]),
        ("deepseek_r1", "open", "Hm.</think>Yes", [Thought("Hm."), "Yes"]),
        ("deepseek_r1", "open", "<think>Hm.</think>Yes", [Thought("Hm."), "Yes"]),
        ("qwen3", "open", f"<think>{HERMES}</think>{HERMES}", [Thought(HERMES), CALL]),
        ("none", "open", "<think>x</think>", ["<think>x</think>"]),
    ],
)
def test_reasoning_is_told_from_the_answer(reasoning, thinks, text, expected, size):
    assert joined(read(reader_of("hermes", reasoning, thinks), cut(text, size))) == expected


@pytest.mark.parametrize(
    ("name", "parts", "expected"),
    [
        ("hermes", ["one < two <tool", "kit> three"], ["one < two", " <toolkit> three"]),
        (
            "hermes",
            ['<tool_call>{"name": "f", "argu', 'ments": {"a": [1', "]}", "}</tool_", "call>"],
            ["", CallPart("f", ""), CallPart(None, '{"a": [1'), CallPart(None, "]}")],
        ),
        (
            "qwen3_coder",
            ["<tool_call>\n<function=weather>\n<parameter=city>\nNew ", "York\n"],
            [CallPart("weather", ""), CallPart(None, "New "), CallPart(None, "York")],
        ),
        ("openai", [f"{HARMONY_CALL[:-6]}", "ulm"], [CallPart(None, '{"city": ')]),
    ],
)
def test_what_is_certain_is_passed_on_at_once(name, parts, expected):
    reader = reader_of(name)
    found = [piece for part in parts for piece in reader.read(part)]
    for piece in expected:
        assert not piece or piece in found, found
