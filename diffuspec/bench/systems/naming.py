"""The names of the systems: each one's drafter, and how much of its drafts is verified.

`plain` does not draft. `paper`, `cost_aware_SHAPE` and `fixed_K_SHAPE`, for a draft length K, use
the configuration's own drafter. Every kind of drafter in the registry is also the name of a system:
it uses the configuration's section of that kind or, if the kind needs no model, the defaults.
`auto` chooses at every step among the configuration's drafters and those without a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import (
    PLAIN,
    DraftLengthPolicy,
    SpeculationParams,
    TreeShape,
)
from diffuspec.drafters import KINDS

BASELINE = "plain"
TRANSFORMERS_GREEDY = "transformers_greedy"
TRANSFORMERS_PROMPT_LOOKUP = "transformers_prompt_lookup"
TREE_SHAPES: tuple[TreeShape, ...] = ("path", "beams", "best_first")

ENGINE_SYSTEMS = (BASELINE, "paper", *(f"cost_aware_{shape}" for shape in TREE_SHAPES))
TRANSFORMERS_SYSTEMS = (TRANSFORMERS_GREEDY, TRANSFORMERS_PROMPT_LOOKUP)
DEFAULT_SYSTEM = "cost_aware_best_first"  # the default way to draft
ALL_SYSTEMS = (*ENGINE_SYSTEMS, *TRANSFORMERS_SYSTEMS)

# Systems that modify a kind of drafter: by search settings, or by what is drafted.
VARIANTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "diffuspec_retrieval": ("diffuspec", {"retrieval": True}),
    "diffuspec_cache": ("diffuspec", {"cache_weight": 0.7}),
    "dflash_block": ("dflash", {}),  # the likeliest token of each position, as its authors draft
}
DRAFTER_SYSTEMS = (*KINDS, *VARIANTS)

# Largest depth and number of nodes of a draft that is verified whole.
WHOLE_DRAFT_NODES = 80
_WHOLE_DRAFT = (40, WHOLE_DRAFT_NODES)
_WHOLE_DRAFTS = {"diffuspec": (20, 64), "lookahead": (12, 56)}


def speculation_for(
    name: str, defaults: SpeculationParams, whole_drafts: bool = False
) -> SpeculationParams:
    """Return how one of our systems drafts; its name overrides the defaults. Raises ConfigError.

    whole_drafts: systems named after a kind of drafter verify whole drafts, as the papers do,
    rather than only the part that pays off.
    """
    if name in DRAFTER_SYSTEMS:
        own = replace(defaults, policy="cost_aware", tree_shape="best_first", drafter=None)
        if name == "dflash_block":
            own = replace(own, tree_shape="path", drafter_weight=1.0)
        if not whole_drafts and name != "lookahead":  # lookahead always needs its window verified
            return own
        length, nodes = _WHOLE_DRAFTS.get(_kind_of(name), _WHOLE_DRAFT)
        return replace(own, policy="fixed", num_draft_tokens=length, max_nodes=nodes)
    if name == BASELINE:
        return PLAIN
    if name == "paper":
        return SpeculationParams(policy="paper", tree_shape="path", drafter_weight=0.5)
    match = re.fullmatch(rf"(cost_aware|fixed_(\d+))_({'|'.join(TREE_SHAPES)})", name)
    if match is None:
        raise ConfigError(
            f"--systems must be among {', '.join((*ALL_SYSTEMS, *DRAFTER_SYSTEMS))}, "
            f"fixed_K_SHAPE, got {name!r}"
        )
    shape: TreeShape = next(shape for shape in TREE_SHAPES if shape == match[3])
    policy: DraftLengthPolicy = "cost_aware" if match[2] is None else "fixed"
    length = defaults.num_draft_tokens if match[2] is None else int(match[2])
    return replace(defaults, policy=policy, num_draft_tokens=length, tree_shape=shape)


def find_drafter(name: str, config: EngineConfig) -> DrafterConfig | None:
    """Return the drafter section that one of our systems uses; None: it does not draft.

    Raises ConfigError if the configuration lacks what the system needs.
    """
    if name == BASELINE:
        return None
    if name not in DRAFTER_SYSTEMS:
        if config.drafter is None:
            raise ConfigError(f"--systems: {name} needs --drafter")
        return config.drafter
    kind = _kind_of(name)
    for section in config.named_drafters.values():
        if section.kind == kind:
            return section
    try:
        default: DrafterConfig = KINDS[kind].config()
    except ValidationError as error:  # a model path is missing
        raise ConfigError(
            f"--systems: {name} needs a drafter of that kind, and there is none for this target"
        ) from error
    return default


def config_for(name: str, config: EngineConfig) -> EngineConfig:
    """Return the configuration with the drafter of one of our systems."""
    _, settings = VARIANTS.get(name, (name, {}))
    search = config.search.model_copy(update=dict(settings))
    drafter = find_drafter(name, config)
    return config.model_copy(update={"drafter": drafter, "drafters": {}, "search": search})


def _kind_of(name: str) -> str:
    kind, _ = VARIANTS.get(name, (name, {}))
    return kind
