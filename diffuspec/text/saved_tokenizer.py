"""The tokenizer.json of a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from diffuspec.core.errors import ModelLoadError
from diffuspec.text.directory import check_directory, check_is_no_pointer
from diffuspec.text.quiet import quiet


def load_saved_tokenizer(path: Path) -> Any:
    """Load the tokenizer.json of a model directory. Raises ModelLoadError.

    AutoTokenizer would go by the model type, and silently change a custom tokenizer into that
    family's.
    """
    check_directory(path)
    if not (path / "tokenizer.json").is_file():
        raise ModelLoadError(f"{path} has no tokenizer.json: a fast tokenizer is needed")
    check_is_no_pointer(path / "tokenizer.json")
    try:
        with quiet():
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers and tokenizers may raise anything
        raise ModelLoadError(f"{path}: cannot load its tokenizer: {error!r}") from error
    # Truncation and padding of the training that saved it would change prompts silently.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer
