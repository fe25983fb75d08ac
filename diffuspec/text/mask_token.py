"""Reads the id of the mask token from a tokenizer's files, without loading the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError

_NAMING_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def read_mask_token_id(path: Path, others: Sequence[str] = ()) -> int | None:
    """Return the id of a directory's mask token; None if it has none.

    others: texts to look for if no file names the mask token. Raises ModelLoadError.
    """
    for text in (*_named_masks(path), *others):
        for token_id in _ids_of(path, text):
            return token_id
    return None


def _named_masks(path: Path) -> Iterator[str]:
    for name in _NAMING_FILES:
        token = _read(path / name).get("mask_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            yield text


def _ids_of(path: Path, text: str) -> Iterator[int]:
    """Yield the ids that files assign to a token, those of added tokens first."""
    listed = _read(path / "tokenizer.json").get("added_tokens")
    for token in listed if isinstance(listed, list) else []:
        if isinstance(token, dict) and token.get("content") == text:
            yield from _whole_numbers(token.get("id"))
    decoder = _read(path / "tokenizer_config.json").get("added_tokens_decoder")
    for token_id, token in decoder.items() if isinstance(decoder, dict) else []:
        if isinstance(token, dict) and token.get("content") == text and str(token_id).isdigit():
            yield int(token_id)
    yield from _whole_numbers(_read(path / "added_tokens.json").get(text))
    model = _read(path / "tokenizer.json").get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from _whole_numbers(vocabulary.get(text))


def _whole_numbers(value: object) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        yield value


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON object; {} if there is no such file. Raises ModelLoadError."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file.parent}: cannot read {file.name}: {error}") from error
    return data if isinstance(data, dict) else {}
