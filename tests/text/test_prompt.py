"""Prompts that are cut: no more of them is tokenised than is kept, and no token changes by it."""

from __future__ import annotations

import sys
import threading
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from diffuspec.text.prompt import Cut, encode_prompt

WORDS = "to be or not to be that is the question whether tis nobler in the mind "


@cache
def trained() -> Tokenizer:
    """Return a tokenizer trained on a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    tokenizer.train_from_iterator([WORDS * 5, " " * 400], trainer)
    return tokenizer


class CountingTokenizer:
    """A tokenizer that counts the characters that it is given."""

    num_characters = 0

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> Any:
        self.num_characters += sum(map(len, texts))
        return trained().encode_batch(texts, add_special_tokens=add_special_tokens)


@pytest.fixture
def counting() -> CountingTokenizer:
    return CountingTokenizer()


def encode(text: str, counting: CountingTokenizer, cut: Cut | None) -> list[int]:
    tokenizer = SimpleNamespace(backend_tokenizer=counting)
    return encode_prompt(text, tokenizer, None, cut=cut).tolist()


@pytest.mark.parametrize("number", [1, 7, 100])
@pytest.mark.parametrize("keeps_begin", [False, True])
@pytest.mark.parametrize("text", [WORDS * 2000, WORDS + " " * 30_000 + WORDS, WORDS, ""])
def test_tokens_that_are_kept_are_those_of_the_whole_text(counting, text, keeps_begin, number):
    whole = encode(text, counting, None)
    kept = encode(text, counting, Cut(number, keeps_begin=keeps_begin))
    assert kept == (whole[:number] if keeps_begin else whole[-number:])


@pytest.mark.parametrize("keeps_begin", [False, True])
def test_a_long_text_is_not_tokenised_whole(counting, keeps_begin):
    encode(WORDS * 100_000, counting, Cut(5, keeps_begin=keeps_begin))
    assert counting.num_characters < 5000


def test_token_ids_are_cut_as_texts_are(counting):
    tokenizer = SimpleNamespace(backend_tokenizer=counting)
    for cut, kept in ((Cut(2), [3, 4]), (Cut(2, keeps_begin=True), [1, 2]), (Cut(9), [1, 2, 3, 4])):
        assert encode_prompt([1, 2, 3, 4], tokenizer, None, cut=cut).tolist() == kept


def test_other_threads_go_on_while_a_text_is_tokenised(counting):
    begin, end, others = threading.Event(), threading.Event(), []

    def go_on() -> None:
        begin.wait()
        others.append(not end.is_set())

    thread = threading.Thread(target=go_on)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread goes on only where another one lets it
    try:
        begin.set()
        encode(WORDS * 5000, counting, None)
        end.set()
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert others == [True]
