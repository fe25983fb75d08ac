"""Released text: whole characters, and nothing of a stop string or after it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from diffuspec.text.detokenizer import Detokenizer
from tests.support.checkpoints import byte_tokenizer, words_tokenizer

BYTES = byte_tokenizer()
END = BYTES.get_vocab()["<|end|>"]


def encode(text: str) -> list[int]:
    return BYTES.encode(text, add_special_tokens=False).ids


def push_all(stream: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    pieces = []
    for token_id in token_ids:
        pieces.append(stream.push(token_id))
        if stream.is_stopped:
            break
    return [*pieces, stream.finish()]


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The naive reference: read character by character until a stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


class Pieces:
    """Decodes tokens that are any pieces of text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def stream(self, stops: Sequence[str], includes_stop: bool = False) -> Detokenizer:
        stream = Detokenizer(BYTES, stops, includes_stop=includes_stop)
        stream._stream = self  # type: ignore[assignment]
        return stream

    def step(self, tokenizer: Tokenizer, token_id: int) -> str:
        return self.pieces[token_id]


def test_a_character_is_released_with_its_last_byte():
    stream = Detokenizer(BYTES)
    assert [stream.push(i) for i in encode("é€🎉")] == ["", "é", "", "", "€", "", "", "", "🎉"]
    assert stream.finish() == ""


@pytest.mark.parametrize("after", [None, END, *encode("é")[1:]])
def test_special_tokens_are_text_where_they_are_not_skipped(after):
    ids = [END, *encode("aé"), END, END, *encode("€")[:2], END, *encode("b")]
    stream = Detokenizer(BYTES, ["<|end|>b"], skips_special=False, after=after)
    text = BYTES.decode(ids, skip_special_tokens=False)
    assert text == "<|end|>aé<|end|><|end|>\ufffd<|end|>b"
    assert "".join(push_all(stream, ids)) == text.removesuffix("<|end|>b")
    assert stream.is_stopped


def test_an_incomplete_character_is_released_at_the_end():
    stream = Detokenizer(BYTES)
    assert [stream.push(i) for i in encode("a€")[:-1]] == ["a", "", ""]
    assert stream.finish() == BYTES.decode(encode("a€")[:-1])[1:]


def test_special_tokens_have_no_text():
    assert "".join(push_all(Detokenizer(BYTES), [*encode("a"), END, *encode("b"), END])) == "ab"


@given(st.lists(st.integers(0, END + 1), max_size=40))
def test_tokens_one_by_one_give_the_text_of_all_tokens_at_once(token_ids):
    assert "".join(push_all(Detokenizer(BYTES), token_ids)) == BYTES.decode(token_ids)


HIGH = sorted(
    {
        i
        for code in (*range(0x80, 0xD800, 37), *range(0x10000, 0x110000, 4099))
        for i in encode(chr(code))
    }
)


@given(st.lists(st.sampled_from(HIGH), max_size=60))
def test_invalid_bytes_one_by_one_give_the_text_of_all_at_once(token_ids):
    assert "".join(push_all(Detokenizer(BYTES), token_ids)) == BYTES.decode(token_ids)


@pytest.mark.parametrize("token_id", [END, *encode("€")])
def test_tokens_without_text_are_not_collected(token_id):
    stream = Detokenizer(BYTES)
    for _ in range(200):
        stream.push(token_id)
        assert len(stream._undecoded) < 20


@given(st.text("ab€", max_size=24), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_where_the_naive_reference_cuts(text, stops):
    stream = Detokenizer(BYTES, stops)
    pieces = push_all(stream, encode(text))
    assert ("".join(pieces), stream.is_stopped) == cut(text, stops)


@given(
    st.lists(st.text("ab", max_size=5), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_do_not_depend_on_the_split_into_tokens(pieces, stops):
    stream = Pieces(pieces).stream(stops)
    released = push_all(stream, range(len(pieces)))
    assert ("".join(released), stream.is_stopped) == cut("".join(pieces), stops)


@given(
    st.lists(st.text("ab", max_size=5), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_string_that_is_kept_ends_the_text_and_holds_nothing_back(pieces, stops):
    stream = Pieces(pieces).stream(stops, includes_stop=True)
    released = push_all(stream, range(len(pieces)))
    text, is_stopped = cut("".join(pieces), stops)
    assert "".join(released) == text + (stream.stop_string or "")
    assert stream.is_stopped == is_stopped and released[-1] == ""
    if is_stopped:
        assert stream.stop_string in stops and len(released) > 1
    else:
        assert released[:-1] == pieces


def test_a_stop_string_within_min_tokens_is_ignored_even_if_a_longer_one_has_begun():
    stream = Detokenizer(BYTES, ["aXb", "X"], 2)
    assert "".join(push_all(stream, encode("aXcX"))) == "aXc"


@given(st.text("ab", max_size=16), st.text("ab", min_size=1, max_size=5))
def test_no_more_is_held_back_than_the_beginning_of_a_stop_string(text, stop):
    stream = Detokenizer(BYTES, [stop])
    released = ""
    for number, token_id in enumerate(encode(text), start=1):
        released += stream.push(token_id)
        if stream.is_stopped:
            break
        held = text[len(released) : number]
        assert text.startswith(released) and stop.startswith(held) and held != stop
        longer = range(len(held) + 1, min(number, len(stop)) + 1)
        assert not any(stop.startswith(text[number - size : number]) for size in longer)


@pytest.mark.parametrize("split", range(1, 8))
def test_a_stop_string_is_found_across_any_two_tokens(split):
    text = "xx</end>"
    stream = Pieces([text[:split], text[split:], "yy"]).stream(["</end>"])
    assert "".join(push_all(stream, range(3))) == "xx" and stream.is_stopped


def test_the_beginning_of_a_stop_string_is_released_at_the_end():
    stream = Detokenizer(BYTES, ["END"])
    assert push_all(stream, encode("aEN")) == ["a", "", "", "EN"]
    assert not stream.is_stopped


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "a"), (3, "a"), (4, "aEN"), (5, "aEND"), (6, "aENDx")]
)
def test_stop_strings_that_are_complete_within_min_tokens_are_overlooked(min_tokens, text):
    stream = Detokenizer(BYTES, ["END", "ND", "Dx", "xE"], min_tokens)
    assert "".join(push_all(stream, encode("aENDxEND"))) == text
    assert stream.is_stopped


@pytest.mark.parametrize(("before", "text"), [("Paris", " Paris"), ("<0xE2>", "Paris")])
def test_an_answer_goes_on_where_its_prompt_ends(before, text):
    tokenizer = words_tokenizer()
    word, after = (tokenizer.get_vocab()[one] for one in ("▁Paris", before))
    assert Detokenizer(tokenizer).push(word) == "Paris"
    assert Detokenizer(tokenizer, after=after).push(word) == text
