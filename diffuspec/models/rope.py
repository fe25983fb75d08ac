"""Rotary positions whose angles depend on the longest sequence of a forward pass.

transformers chooses these angles once for all rows of a forward. As soon as one row lies beyond the
switch, every other row changes too: a draft, or another request, would change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffuspec.errors import ModelLoadError

_SWITCHED = (("short_factor", "long_factor"), ("short_mscale", "long_mscale"))


def check_rope(path: Path, config: Any, max_len: int, num_more: int) -> None:
    """Raises ModelLoadError unless all positions that are served are before the switch.

    Sequences have max_len tokens at most, and positions of a step go num_more beyond them.
    """
    for rope in _ropes(config):
        limit = _switch(config, rope)
        if limit is None or max_len + num_more <= limit:
            continue
        allowed = limit - num_more
        remedy = (
            f"max_model_len must be at most {allowed}, got {max_len}"
            if allowed > 0
            else "max_tree_nodes must be lower"
        )
        raise ModelLoadError(
            f"{path}: rope type {rope['rope_type']!r} turns all rows of a step differently once "
            f"one is beyond {limit} positions, so that a draft could change the answer; with "
            f"{num_more} positions for drafts {remedy}"
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
