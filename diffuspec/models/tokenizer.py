"""A model directory's tokenizer. Knows nothing of weights, and so does without torch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast

from diffuspec.errors import ModelLoadError, VocabularyError


def load_tokenizer(path: Path) -> Any:
    """Load a model directory's tokenizer, as its tokenizer.json has it. Raises ModelLoadError.

    Not by AutoTokenizer, which goes by the model type and would silently read a tokenizer of
    one's own as that family's.
    """
    if not path.is_dir():
        raise ModelLoadError(f"model directory {path} does not exist")
    if not (path / "tokenizer.json").is_file():
        raise ModelLoadError(f"{path} has no tokenizer.json: a fast tokenizer is needed")
    try:
        with quiet():
            return PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers and tokenizers raise what they like
        raise ModelLoadError(f"{path}: cannot load its tokenizer: {error!r}") from error


def check_tokenizer(path: Path, tokenizer: Any, vocab_size: int) -> int:
    """Return how many ids the tokenizer knows. Raises VocabularyError if the model has fewer."""
    num_ids = max(tokenizer.get_vocab().values()) + 1
    if num_ids > vocab_size:
        raise VocabularyError(
            f"{path}: the tokenizer knows {num_ids} token ids, the model only {vocab_size}"
        )
    return int(num_ids)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing progress bars and reports: failures become our errors."""
    log: Any = transformers.utils.logging
    verbosity, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if has_bars:
            log.enable_progress_bar()
