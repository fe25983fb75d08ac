"""Marks, special tokens and texts that a tokenizer normalises, in the forms of answers."""

from __future__ import annotations

import json
import random
import unicodedata
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput
from diffuspec.text.grammar_tokens import GrammarTokens
from diffuspec.text.grammars import Grammars
from tests.support.chat_models import QWEN, chat_tokenizer

NFD = unicodedata.normalize("NFD", "Việt")
TOKENIZER = chat_tokenizer(QWEN)
IDS: dict[str, int] = TOKENIZER.get_vocab()
EOS = IDS["<|im_end|>"]


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    path = tmp_path_factory.mktemp("qwen")
    TOKENIZER.save_pretrained(path)
    return Grammars.of(path, TargetInfo(len(TOKENIZER), 512, 2, (EOS,)))


def allowed(matcher: Any) -> list[int]:
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return [int(i) for i in np.unpackbits(mask, bitorder="little").nonzero()[0]]


def answers(grammars: Grammars, num_answers: int = 5, **form: Any) -> set[str]:
    """Texts of whole answers that are drawn at random from what the form allows."""
    rng, texts = random.Random(0), set()
    for _ in range(num_answers):
        matcher, ids = grammars.compile(StructuredOutput(**form)), []
        while (token_id := rng.choice(allowed(matcher))) != EOS:
            ids.append(token_id)
            assert matcher.consume_token(token_id), matcher.get_error()
        texts.add(TOKENIZER.decode(ids, skip_special_tokens=True))
    return texts


@pytest.mark.parametrize(
    "text", ["x</think>", "<tool_call>", "a<|file_sep|>b", "a<|im_end|>b", NFD, f"{NFD}<think>"]
)
def test_texts_with_marks_or_that_are_normalised_are_written_as_they_are(grammars, text):
    assert answers(grammars, choice=(text,)) == {text}
    escaped = "".join(f"\\u{{{ord(letter):x}}}" for letter in text)
    assert answers(grammars, regex=escaped) == {text}
    for schema in ({"const": text}, {"enum": [text]}):
        [answer] = answers(grammars, json_schema=json.dumps(schema))
        assert json.loads(answer) == text
    properties = {text: {"const": 1}}
    closed = {"properties": properties, "required": [text], "additionalProperties": False}
    found = answers(grammars, json_schema=json.dumps({"type": "object"} | closed))
    assert [json.loads(answer) for answer in found] == [{text: 1}] * len(found)


def test_a_mark_is_text_where_any_text_may_be_and_a_special_token_never_is(grammars):
    matcher = grammars.compile(StructuredOutput(regex="(.|\n)*"))
    found = set(allowed(matcher))
    assert found >= {IDS[name] for name in (*QWEN.marks, QWEN.eos, "<", "tool")}
    assert found.isdisjoint(IDS[name] for name in QWEN.special if name != QWEN.eos)


def test_a_forced_mark_is_the_token_that_models_learn(grammars):
    matcher = grammars.compile(StructuredOutput(grammar='start: "<tool_call>\\nhi"'))
    assert allowed(matcher) == [IDS["<tool_call>"]]


@pytest.mark.parametrize("name", ["<tool_call>", "<|im_start|>", "<|im_end|>", "<[260]>"])
def test_a_grammar_may_name_any_added_token(grammars, name):
    grammar = f'// <tool_call> /\nstart: A {name}\nA: /[<>]+/ | "<tool_call>"'
    matcher = grammars.compile(StructuredOutput(grammar=grammar))
    assert matcher.consume_token(IDS["<"])
    assert IDS.get(name, 260) in allowed(matcher)


def test_texts_that_no_tokenisation_keeps_are_made_of_the_longest_tokens():
    words = Tokenizer(WordLevel({"?": 0, "a": 1, "b": 2, "ab": 3, "</s>": 4}, unk_token="?"))
    words.decoder = ByteLevel()
    tokens = GrammarTokens(words, 5, (4,))
    assert tokens("ab") == [3]
    assert tokens("abba") == [3, 2, 1]
    assert tokens("b</s>") == [2], "as far as there are tokens"
