"""Chooses the configuration section of a drafter from the options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.drafters import KINDS, DrafterKind

NONE = "none"  # switches a part off

Section: TypeAlias = dict[str, Any]


def choose_section(
    base: EngineConfig,
    others: Mapping[str, dict[str, object]],
    drafter: str | None,
    kind: str | None,
) -> Section | None:
    """Return the drafter section that the options select. Raises ConfigError.

    others: drafter sections by kind, besides those of the configuration.
    """
    if drafter == NONE:
        if kind is not None:
            raise ConfigError("--drafter none and --drafter-kind exclude each other")
        return None
    known: dict[str, Any] = {**others} | {
        name: one.model_dump() for name, one in base.named_drafters.items()
    }
    chosen = kind or base.speculation.drafter
    if chosen is None:
        chosen = next(iter(base.named_drafters), None)
    section = known.get(chosen, {"kind": chosen}) if chosen is not None else {}
    if drafter is not None:
        if "path" not in kind_of(section).config.model_fields:
            raise ConfigError(f"--drafter DIR has no effect on the kind {section['kind']}")
        section = {**section, "path": Path(drafter)}
    if section.get("kind") in KINDS and "path" not in section:
        path = kind_of(section).config.model_fields.get("path")
        if path is not None and path.is_required():
            raise ConfigError(f"the drafter {chosen} needs its model: give --drafter DIR")
    return section or None


def with_block_size(section: Section | None, size: int | None) -> Section | None:
    """Return the section with the block size of an option, if given. Raises ConfigError."""
    if size is None:
        return section
    if section is None:
        raise ConfigError("--drafter-block-size has no effect without a drafter (--drafter DIR)")
    if "block_size" not in kind_of(section).config.model_fields:
        raise ConfigError(f"--drafter-block-size has no effect on the kind {section['kind']}")
    return {**section, "block_size": size}


def kind_of(section: Section) -> DrafterKind[Any]:
    """Return the kind that a section names; invalid names are refused later."""
    return KINDS.get(section.get("kind", ""), KINDS["diffuspec"])
