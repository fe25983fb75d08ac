"""Texts to tokens, without transformers."""

from __future__ import annotations

from tokenizers import Encoding, Tokenizer

from diffuspec.core.errors import InvalidRequestError


def encode_text(tokenizer: Tokenizer, text: str, adds_special_tokens: bool) -> Encoding:
    """Tokenise a text; other threads run meanwhile. Raises InvalidRequestError."""
    try:
        # transformers' own encode would warn about lengths, which are checked with the request. The
        # backend's encode of a single text holds the GIL, for a second per megabyte.
        [encoding] = tokenizer.encode_batch([text], add_special_tokens=adds_special_tokens)
    except TypeError as error:  # lone surrogates
        raise InvalidRequestError(f"a prompt must be valid Unicode text: {error}") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise InvalidRequestError("the tokenizer's rules fail on this text") from error
    return encoding


def is_panic(error: BaseException) -> bool:
    """Return whether Rust code failed, which raises no Exception."""
    return type(error).__name__ == "PanicException"
