"""The tokenizer and chat template of a GGUF file, as files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from diffuspec.core.errors import ModelLoadError
from diffuspec.text.gguf_file import GgufFile, reading_part
from diffuspec.text.saved_tokenizer import load_saved_tokenizer

_TEXTS = (
    "What is the capital of France?",
    "def f(x):\n    return x + 1234\n",
    "Größe: 東京, naïve café, 3.14 – 🙂",
)
_SPLIT_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")


def save_tokenizer(file: GgufFile, folder: Path) -> Any:
    """Write a file's tokenizer to a directory, and return it. Raises ModelLoadError."""
    tokenizer = _read_tokenizer(file)
    tokenizer.save_pretrained(folder)
    _check_tokenizer(file, tokenizer, folder)
    return tokenizer


def _read_tokenizer(file: GgufFile) -> Any:
    with reading_part(file, "tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(
            file.path.parent, gguf_file=file.path.name, trust_remote_code=False
        )
    if file.split in _SPLIT_DIGITS:  # a rule that transformers mistakes for GPT-2's
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    return _known_ids_only(tokenizer, file.num_token_ids)


def _known_ids_only(tokenizer: Any, num_ids: int) -> Any:
    """Return the tokenizer without tokens that transformers adds after those of the file."""
    if len(tokenizer) <= num_ids:
        return tokenizer
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < num_ids]
    backend = Tokenizer.from_str(json.dumps(data))
    special = {
        name: token
        for name, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str) and backend.token_to_id(token) is not None
    }
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, chat_template=tokenizer.chat_template, **special
    )


def _check_tokenizer(file: GgufFile, tokenizer: Any, folder: Path) -> None:
    """Raise ModelLoadError unless the saved tokenizer round-trips texts."""
    saved = load_saved_tokenizer(folder)
    for text in _TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if saved.encode(text, add_special_tokens=False) != ids:
            raise ModelLoadError(f"{file.path}: its tokenizer cannot be saved as tokenizer.json")
        back = saved.decode(ids, clean_up_tokenization_spaces=False)
        if tokenizer.unk_token_id not in ids and back.strip() != text.strip():
            raise ModelLoadError(f"{file.path}: its tokenizer makes {back!r} of {text!r}")
