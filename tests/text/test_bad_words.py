"""Bad words are encoded as they begin a text and as they follow a space."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams
from diffuspec.text.bad_words import encode_bad_words
from tests.support.checkpoints import byte_tokenizer

TOKENIZER = SimpleNamespace(backend_tokenizer=byte_tokenizer())


def encode(text: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(text, add_special_tokens=False).ids)


def test_each_word_gives_two_sequences() -> None:
    sampling = SamplingParams(bad_words=("no", " no", "x"), bad_words_token_ids=((1, 2),))
    encoded = encode_bad_words(sampling, TOKENIZER)
    assert encoded.bad_words == ()
    assert encoded.bad_words_token_ids == ((1, 2), *map(encode, ("no", " no", "x", " x")))


def test_parameters_without_bad_words_stay_the_same_object() -> None:
    sampling = SamplingParams()
    assert encode_bad_words(sampling, TOKENIZER) is sampling


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="valid Unicode"):
        encode_bad_words(SamplingParams(bad_words=("\ud800",)), TOKENIZER)


def test_too_many_bad_words_and_sequences_together_are_refused_by_both_names() -> None:
    words = tuple(f"w{n}" for n in range(64))
    assert encode_bad_words(SamplingParams(bad_words=words), TOKENIZER)
    sampling = SamplingParams(bad_words=words, bad_words_token_ids=((1, 2),))
    with pytest.raises(InvalidRequestError, match="bad_words and bad_words_token_ids"):
        encode_bad_words(sampling, TOKENIZER)
