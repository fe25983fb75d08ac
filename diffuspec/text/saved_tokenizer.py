"""Loads the tokenizer.json of a model directory, without torch."""

from __future__ import annotations

import functools
import os
from copy import copy
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError
from diffuspec.text.directory import check_directory, check_is_no_pointer
from diffuspec.text.encoding import is_panic
from diffuspec.text.quiet import quiet
from diffuspec.text.tried_directories import try_directory


def load_saved_tokenizer(path: Path) -> Any:
    """Load the tokenizer.json of a model directory. Raises ModelLoadError.

    AutoTokenizer would go by the model type, and silently replace a custom tokenizer by that
    family's.
    """
    check_directory(path)
    if not (path / "tokenizer.json").is_file():
        raise ModelLoadError(f"{path} has no tokenizer.json: a fast tokenizer is needed")
    check_is_no_pointer(path / "tokenizer.json")
    try_directory(path)
    files = [(file.name, file.stat()) for file in os.scandir(path) if file.is_file()]
    return copy(_read(path, tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)))


@functools.lru_cache(maxsize=1)
def _read(path: Path, files: tuple[tuple[str, int, int], ...]) -> Any:
    """Read a directory's tokenizer; once for the checks, the target and the engine.

    files: names, times and sizes of the directory's files. Callers may change attributes of a copy,
    but not its backend. Raises ModelLoadError.
    """
    from transformers import PreTrainedTokenizerFast  # takes half a second

    try:
        with quiet():
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except BaseException as error:  # transformers and tokenizers may raise anything
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelLoadError(f"{path}: cannot load its tokenizer: {error!r}") from error
    # The truncation and padding of its training would silently change prompts.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer
