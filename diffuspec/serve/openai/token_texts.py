"""The texts of single tokens, which may be incomplete characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from diffuspec.core.types import TokenLogprobs
from diffuspec.serve.openai.objects import ChosenTokenLogprob, TokenLogprob
from diffuspec.text.token_bytes import byte_of, bytes_of_letters


class TokenTexts:
    """The tokens of one tokenizer as bytes; for a special token, the bytes of its name."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(tokenizer.all_special_ids)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of several tokens together, including special ones."""
        decoded: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return decoded

    def token(self, token_id: int) -> str:
        """Return the text of one token; incomplete characters are U+FFFD."""
        return self.raw(token_id).decode(errors="replace")

    def name(self, token_id: int) -> str:
        """Return the text of one token; parts of a character are their bytes, as in bytes:\\xe2.

        So tokens with different bytes have different names.
        """
        raw = self.raw(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is omitted from the text of answers."""
        return token_id in self._special_ids

    def raw(self, token_id: int) -> bytes:
        """Return the bytes of a token, which may be an incomplete character."""
        text = self.text([token_id])
        if "\ufffd" not in text:
            # Decoded after another token, since some tokenizers drop a space that begins a text.
            return self.text([token_id, token_id])[len(text) :].encode()
        token: str = self._tokenizer.convert_ids_to_tokens(token_id)
        return byte_of(token) or bytes_of_letters(token) or text.encode()


class TextOffsets:
    """The offsets, in characters, at which tokens begin in their joint text."""

    def __init__(self, texts: TokenTexts, *, shows_special: bool = False) -> None:
        """shows_special: answers include special tokens."""
        self._texts = texts
        self._shows_special = shows_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_characters = 0

    def of(self, token_ids: Sequence[int], num_echoed: int = 0, echoed: str = "") -> list[int]:
        """Return where each of the next tokens begins; parts of a character begin together.

        The first `num_echoed` tokens are those of `echoed`, which lacks tokens added by the
        tokenizer, such as BOS.
        """
        offsets = []
        for place, token_id in enumerate(token_ids):
            is_shown = not self._texts.is_special(token_id) or (
                self._texts.token(token_id) in echoed if place < num_echoed else self._shows_special
            )
            raw = self._texts.raw(token_id) if is_shown else b""
            if raw and not 0x80 <= raw[0] < 0xC0:  # it does not continue a character
                self._read(b"", is_last=True)
            offsets.append(self._num_characters)
            self._read(raw)
        return offsets

    def _read(self, raw: bytes, *, is_last: bool = False) -> None:
        self._num_characters += len(self._decoder.decode(raw, is_last))


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can represent: at least -9999, as in OpenAI's API."""
    return max(logprob, -9999.0)


def chosen_logprobs(
    texts: TokenTexts,
    name: Callable[[int, str], str],
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
) -> list[ChosenTokenLogprob]:
    """Return each token with its likeliest alternatives; `name` names one by its id and text."""

    def described(token_id: int, logprob: float) -> TokenLogprob:
        shown = name(token_id, texts.token(token_id))
        return {"token": shown, "logprob": finite(logprob), "bytes": list(texts.raw(token_id))}

    return [
        {
            **described(token_id, found.logprob),
            "top_logprobs": [described(*pair) for pair in found.top],
        }
        for token_id, found in zip(token_ids, logprobs, strict=True)
    ]
