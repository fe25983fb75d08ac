"""Bad words as token sequences."""

from __future__ import annotations

from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import MAX_BAD_WORDS, SamplingParams


def encode_bad_words(sampling: SamplingParams, tokenizer: Any) -> SamplingParams:
    """Return the parameters with their bad words as token ids.

    Each word is encoded at the beginning of a text and after a space; other tokenisations of it are
    not banned. Raises InvalidRequestError for text that no tokenizer accepts, and for too many
    sequences.
    """
    if not sampling.bad_words:
        return sampling
    sequences = dict.fromkeys(sampling.bad_words_token_ids)
    for word in sampling.bad_words:
        bare = word.lstrip(" ")
        for text in (bare, f" {bare}"):
            try:
                encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
            except TypeError as error:  # lone surrogates
                raise InvalidRequestError(f"bad_words must be valid Unicode: {error}") from error
            sequences[tuple(encoding.ids)] = None
    sequences.pop((), None)  # a word of only spaces, or one that the tokenizer drops
    if len(sequences) > 2 * MAX_BAD_WORDS:
        raise InvalidRequestError(
            f"bad_words and bad_words_token_ids must have at most {2 * MAX_BAD_WORDS} token "
            f"sequences together (one or two for each word), got {len(sequences)}"
        )
    return sampling.derive(bad_words=(), bad_words_token_ids=tuple(sequences))
