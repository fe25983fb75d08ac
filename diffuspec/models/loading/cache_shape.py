"""The shape of a model's cache, from its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.pages.store import CacheShape


def cache_shape(path: Path, config: Any) -> CacheShape:
    """Return the cache's shape from config.json. Raises ModelLoadError if layers lack attention."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        raise ModelLoadError(
            f"{path}: {config.model_type} is not supported: it is not a stack of attention layers"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return CacheShape(config.num_hidden_layers, num_kv_heads, head_dim)
