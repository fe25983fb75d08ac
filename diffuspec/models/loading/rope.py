"""Rotary positions whose angles depend on the longest sequence of a forward pass.

transformers chooses these angles once for all rows of a forward. As soon as one row lies beyond the
switch, every other row changes too: a draft, or another request, would change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError

_SWITCHED = (("short_factor", "long_factor"), ("short_mscale", "long_mscale"))


def check_rope(path: Path, config: Any, max_len: int) -> None:
    """Raises ModelLoadError unless all of max_len positions are before the switch."""
    for rope in _ropes(config):
        limit = _switch(config, rope)
        if limit is not None and max_len > limit:
            raise ModelLoadError(
                f"{path}: rope type {rope['rope_type']!r} turns all rows of a step differently "
                f"once one is beyond {limit} positions, so that a draft could change the answer: "
                f"max_model_len must be at most {limit}, got {max_len}"
            )


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Yield a model's rope parameters: one set, or one for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in nested or [parameters]:
        if isinstance(rope.get("rope_type"), str):
            yield rope


def _switch(config: Any, rope: dict[str, Any]) -> int | None:
    """Return up to how many positions the angles are the same for every forward; None: always."""
    if "dynamic" in rope["rope_type"]:
        return int(config.max_position_embeddings)
    if rope["rope_type"] == "longrope" and any(rope.get(a) != rope.get(b) for a, b in _SWITCHED):
        return int(rope["original_max_position_embeddings"])
    return None
