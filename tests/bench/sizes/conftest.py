"""Configurations of tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_SIZES: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


@pytest.fixture
def save_sizes(tmp_path: Path) -> Callable[..., Path]:
    """Save a tiny model's config.json, with changes, under a name."""

    def save(name: str, **changes: Any) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(_SIZES | changes))
        return path

    return save
