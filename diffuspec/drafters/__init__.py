"""The drafters that a configuration can name.

A new drafter needs a file here with a DrafterKind, a line in KINDS, and a configuration section in
core/drafter_config.
"""

from __future__ import annotations

from typing import Any

from diffuspec.core.config import SearchConfig
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.drafters import (
    autoregressive,
    dflash,
    dflash_remote,
    diffuspec,
    eagle,
    eagle2,
    eagle3,
    hydra,
    lookahead,
    medusa,
    prompt_lookup,
    samd,
    samd_recycling,
    token_recycling,
)
from diffuspec.drafters.kind import DrafterKind, Home, LocalDrafter, Target
from diffuspec.drafters.path_search import make_path_search

__all__ = ["KINDS", "DrafterKind", "Home", "LocalDrafter", "Target", "kind_of", "load_drafter"]

KINDS: dict[str, DrafterKind[Any]] = {
    "diffuspec": diffuspec.KIND,
    "sps": autoregressive.KIND,
    "pld": prompt_lookup.KIND,
    "samd": samd.KIND,
    "samd_recycling": samd_recycling.KIND,
    "token_recycling": token_recycling.KIND,
    "lookahead": lookahead.KIND,
    "medusa": medusa.KIND,
    "hydra": hydra.KIND,
    "eagle": eagle.KIND,
    "eagle2": eagle2.KIND,
    "eagle3": eagle3.KIND,
    "dflash": dflash.KIND,
    "dflash_remote": dflash_remote.KIND,
}


def kind_of(config: DrafterConfig) -> DrafterKind[Any]:
    """Return the kind that a configuration section names."""
    return KINDS[config.kind]


def load_drafter(config: DrafterConfig, search: SearchConfig, target: Target) -> LocalDrafter:
    """Load a drafter into this process, with its own path search if it needs one.

    Raises ConfigError, ModelLoadError, NgramError.
    """
    kind = kind_of(config)
    scorer = make_path_search(search, target.info, target.path) if kind.needs_path_scorer else None
    return kind.load(config, target, scorer)
