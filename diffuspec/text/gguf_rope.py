"""Scaled rotary positions in a GGUF file's metadata, as transformers' configurations have them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError

_YARN_BETAS = ("beta_fast", "beta_slow")
_UNREAD = {"yarn_log_multiplier": 0.0, "yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0}


def scaled_rope(
    path: Path, architecture: str, metadata: Mapping[str, Any], max_positions: int
) -> dict[str, Any] | None:
    """Return the rope parameters that differ from a family's own, if any do.

    Raises ModelLoadError for a scaling that cannot be run.
    """
    prefix = f"{architecture}.rope."
    found = {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }
    kind = found.get("scaling.type")
    factor = float(found.get("scaling.factor", found.get("scale_linear", 1.0)))
    if kind is None:  # llama.cpp takes a factor alone for a linear one
        kind = "none" if factor == 1.0 else "linear"
    if kind not in ("none", "linear", "yarn"):
        raise ModelLoadError(
            f"{path}: {prefix}scaling.type {kind!r:.40} is not supported; none, linear and yarn are"
        )
    if kind == "none" or factor == 1.0:
        return None
    if factor < 1.0 or not math.isfinite(factor):
        raise ModelLoadError(f"{path}: {prefix}scaling.factor must be 1 or more, got {factor}")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    for name, usual in _UNREAD.items():
        if found.get(f"scaling.{name}", usual) != usual:
            raise ModelLoadError(
                f"{path}: {prefix}scaling.{name} must be {usual}, got {found[f'scaling.{name}']}"
            )
    length = found.get("scaling.original_context_length", max_positions)
    rope: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    rope["original_max_position_embeddings"] = length
    for name in _YARN_BETAS:
        if f"scaling.yarn_{name}" in found:
            rope[name] = float(found[f"scaling.yarn_{name}"])
    attention = float(found.get("scaling.attn_factor", 1.0))
    if attention != 1.0:
        rope["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    return rope
