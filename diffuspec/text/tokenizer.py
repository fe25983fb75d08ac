"""Loads and checks a model's tokenizer, without torch."""

from __future__ import annotations

import hashlib
import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np

from diffuspec.core.errors import VocabularyError
from diffuspec.core.types import TokenIds
from diffuspec.text.chat_template import read_template
from diffuspec.text.gguf_directory import model_directory
from diffuspec.text.saved_tokenizer import load_saved_tokenizer

logger = logging.getLogger(__name__)

_MAX_NAMED = 5  # tokens in a warning


def load_tokenizer(path: Path, chat_template: Path | None = None) -> Any:
    """Load the tokenizer of a model directory or a GGUF file.

    chat_template: a file whose chat template replaces its own. Raises ModelLoadError, and
    ConfigError for that file.
    """
    tokenizer = load_saved_tokenizer(model_directory(path))
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
    return tokenizer


def unknown_token_id(token_ids: TokenIds, vocab_size: int) -> int | None:
    """Return an id that is negative or not below vocab_size; None if there is none."""
    if token_ids.view(np.uint32).max(initial=0) < vocab_size:  # negative ids become the largest
        return None
    lowest = int(token_ids.min())
    return lowest if lowest < 0 else int(token_ids.max())


def check_tokenizer(path: Path, tokenizer: Any, vocab_size: int) -> int:
    """Return the number of ids that both the tokenizer and the model have.

    Warns about added tokens that only the tokenizer has, such as a [PAD] from training. Raises
    VocabularyError if the model lacks other tokens.
    """
    num_ids = int(max(tokenizer.get_vocab().values())) + 1
    if num_ids <= vocab_size:
        return num_ids
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    unknown = range(vocab_size, num_ids)
    if not all(token_id in added for token_id in unknown):
        raise VocabularyError(
            f"{path}: the tokenizer knows {num_ids} token ids, the model only {vocab_size}"
        )
    names = ", ".join(added[token_id].content for token_id in unknown[:_MAX_NAMED])
    logger.warning(
        "%s: the model does not know %d added tokens of its tokenizer (%s): prompts that have them "
        "are refused",
        path,
        len(unknown),
        names,
    )
    return vocab_size


def vocabulary_bytes(tokenizer: Any, num_ids: int) -> list[bytes]:
    """Return the tokens of all ids below num_ids in UTF-8; empty for missing ids."""
    found = [b""] * num_ids
    for token, token_id in tokenizer.get_vocab().items():
        if token_id < num_ids:
            found[token_id] = token.encode("utf-8", "backslashreplace")
    return found


def vocabulary_digest(tokenizer: Any, num_ids: int) -> str:
    """Return a hash of the tokens of all ids below num_ids: see draft_service.proto."""
    digest = hashlib.blake2b(digest_size=32)
    for token_id, token in enumerate(vocabulary_bytes(tokenizer, num_ids)):
        if token:
            digest.update(struct.pack("<II", token_id, len(token)) + token)
    return digest.hexdigest()


def check_shared_vocabulary(path: Path, digest: str, num_ids: int) -> None:
    """Check that a drafter's ids below num_ids are the same tokens as the target's.

    digest: the vocabulary_digest of the target's tokenizer. A drafter without a tokenizer.json is
    not checked. Raises VocabularyError.
    """
    if not (model_directory(path) / "tokenizer.json").is_file():
        logger.info("%s has no tokenizer.json: its token ids are not compared", path)
    elif vocabulary_digest(load_tokenizer(path), num_ids) != digest:
        raise VocabularyError(
            f"{path}: its tokenizer and the target's give different meanings to the {num_ids} "
            "token ids of the target; a drafter must share them"
        )
