"""Checks for rotary angles that depend on the longest sequence in a forward.

transformers chooses such angles once for all rows of a forward. As soon as one row is beyond a
limit, the angles of every row change: a draft, or another request, would change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from diffuspec.core.errors import ModelLoadError

_SWITCHED = (("short_factor", "long_factor"), ("short_mscale", "long_mscale"))


def check_rope_types(path: Path, config: Any) -> None:
    """Raise ModelLoadError for a kind of angles that transformers lacks."""
    known = ("default", *ROPE_INIT_FUNCTIONS)
    for rope in _ropes(config):
        if rope["rope_type"] not in known:
            raise ModelLoadError(
                f"{path}: rope type {rope['rope_type']!r:.40} is not supported; supported are "
                + ", ".join(known)
            )


def check_rope(path: Path, config: Any, max_len: int) -> None:
    """Raise ModelLoadError if positions below max_len may change the angles of other rows."""
    for rope in _ropes(config):
        limit = _num_fixed_positions(config, rope)
        if limit is not None and max_len > limit:
            raise ModelLoadError(
                f"{path}: rope type {rope['rope_type']!r} changes the angles of all rows once one "
                f"is beyond {limit} positions, so that a draft could change the answer: "
                f"max_model_len must be at most {limit}, got {max_len}"
            )


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Yield a model's rope parameters: one set, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in nested or [parameters]:
        if isinstance(rope.get("rope_type"), str):
            yield rope


def _num_fixed_positions(config: Any, rope: dict[str, Any]) -> int | None:
    """Return the number of positions whose angles are the same in every forward; None: all."""
    if "dynamic" in rope["rope_type"]:
        return int(config.max_position_embeddings)
    if rope["rope_type"] == "longrope" and any(rope.get(a) != rope.get(b) for a, b in _SWITCHED):
        return int(rope["original_max_position_embeddings"])
    return None
