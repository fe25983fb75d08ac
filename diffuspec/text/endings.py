"""The token ids at which answers end, according to a model directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError
from diffuspec.text.chat_template import turn_end_ids
from diffuspec.text.gguf_directory import model_directory

logger = logging.getLogger(__name__)

_FILES = ("generation_config.json", "config.json")


def read_eos_token_ids(path: Path, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end an answer, those of the first source first.

    They are those of generation_config.json (or of config.json if that has none), the tokenizer's,
    and the one with which the chat template ends an answer. Raises ModelLoadError for values that
    are not token ids of the model.
    """
    path = model_directory(path)
    configs = {name: _read(path / name) for name in _FILES}
    vocab_size = _vocab_size(configs["config.json"])
    found: Sequence[int] = ()
    for name, config in configs.items():
        found = found or _checked(path / name, config.get("eos_token_id"), vocab_size)
    others = (tokenizer.eos_token_id, *turn_end_ids(tokenizer))
    num_ids = vocab_size or max(tokenizer.get_vocab().values()) + 1
    ids = (*found, *(one for one in others if one is not None and one < num_ids))
    if not ids:
        logger.warning(
            "%s names no token that ends an answer: answers go on to their longest length", path
        )
    return tuple(dict.fromkeys(ids))


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object; {} for a missing or damaged file, which loading refuses."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _vocab_size(config: dict[str, Any]) -> int | None:
    sizes = (config, config.get("text_config"))
    found = (one.get("vocab_size") for one in sizes if isinstance(one, dict))
    return next((size for size in found if isinstance(size, int)), None)


def _checked(file: Path, value: Any, vocab_size: int | None) -> tuple[int, ...]:
    """Return a file's eos_token_id as ids. Raises ModelLoadError."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for one in ids:
        if type(one) is not int or one < 0 or (vocab_size is not None and one >= vocab_size):
            below = "" if vocab_size is None else f" below {vocab_size}"
            raise ModelLoadError(
                f"{file}: eos_token_id must be token ids{below}, one or a list, got {one!r:.80}"
            )
    return tuple(ids)
