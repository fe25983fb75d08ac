"""Makes systems of their names, around one engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from diffuspec.bench.systems.answer import System
from diffuspec.bench.systems.engine_system import EngineSystem, sibling
from diffuspec.bench.systems.naming import (
    TRANSFORMERS_PROMPT_LOOKUP,
    TRANSFORMERS_SYSTEMS,
    config_for,
    speculation_for,
)
from diffuspec.bench.systems.transformers_system import TransformersSystem, load_transformers_model
from diffuspec.core.config import EngineConfig
from diffuspec.engine import Engine

_PROMPT_LOOKUP_TOKENS = 10


@contextlib.contextmanager
def open_systems(
    engine: Engine,
    names: Sequence[str],
    config: EngineConfig | None = None,
    *,
    whole_drafts: bool = False,
) -> Iterator[list[System]]:
    """Yield the named systems around an engine, in the order of the names.

    Each of ours has its own loop over the engine's models, so that none profits from costs and
    acceptance learnt by another. `config` may have more drafters than the engine has loaded;
    a system loads its own. Raises ConfigError, ModelLoadError.
    """
    config, model = config or engine.config, None
    with contextlib.ExitStack() as stack:
        systems: list[System] = []
        for name in names:
            if name not in TRANSFORMERS_SYSTEMS:
                own = stack.enter_context(sibling(engine, config_for(name, config)))
                speculation = speculation_for(name, engine.default_speculation, whole_drafts)
                systems.append(EngineSystem(name, own, speculation))
                continue
            model = model or _load_model(engine)
            lookup = _PROMPT_LOOKUP_TOKENS if name == TRANSFORMERS_PROMPT_LOOKUP else None
            eos_token_ids = engine.verifier.info.eos_token_ids
            systems.append(TransformersSystem(name, model, eos_token_ids, lookup))
        yield systems


def _load_model(engine: Engine) -> Any:
    """Load a second copy of the target, on the same device and of the same type."""
    target: Any = engine.verifier
    cache = target.runner.cache
    return load_transformers_model(engine.config.target.path, cache.device, cache.dtype)
