"""Our systems: they share one engine, and so one target, and differ in how they draft."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from diffuspec.bench.systems.answer import Answer
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.drafters import LocalDrafter, Target, load_drafter
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.path_search import make_path_search
from diffuspec.engine.engine import Engine


class EngineSystem:
    """An engine with one way of drafting."""

    def __init__(self, name: str, engine: Engine, speculation: SpeculationParams) -> None:
        self._name = name
        self._engine = engine
        self._speculation = speculation

    @property
    def name(self) -> str:
        return self._name

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        runners = self._engine.runners
        # so that no system finds the previous system's prompt cached
        self._engine.reset_prefix_cache()
        sampling = SamplingParams(max_tokens=max_tokens)
        forwards = sum(runner.forward_seconds for runner in runners)
        started = time.perf_counter()
        (completion,) = self._engine.generate([list(prompt_ids)], sampling, self._speculation)
        seconds = time.perf_counter() - started
        forwards = sum(runner.forward_seconds for runner in runners) - forwards
        steps = tuple(step for step in completion.steps if step.num_committed_tokens)
        return Answer(completion.token_ids, seconds, len(steps), completion.steps, forwards)


def sibling(engine: Engine, config: EngineConfig | None = None) -> Engine:
    """Return another engine with the same target, and the same diffusion LM if `config` has it.

    Its drafter may have other settings. Only one of the two engines may work at a time; both write
    to the same trace. Closing the new one leaves the shared roles open.
    """
    config = config or engine.config
    verifier: Any = _Shared(engine.verifier)
    target = Target(verifier.info, None, config.target.path, verifier)
    drafters: dict[str, LocalDrafter] = {}
    model: Any = engine.lattice_model
    for name, section in config.named_drafters.items():
        if model is not None and _has_model_of(section, engine.config.drafter):
            search = make_path_search(config.search, verifier.info, config.target.path)
            drafters[name] = DiffuSpecDrafter(model.with_config(section), search)
        else:
            drafters[name] = load_drafter(section, config.search, target)
    closing = tuple(drafters.values())
    return Engine(config, verifier, drafters or None, engine.tokenizer, closing, engine.tracer)


def _has_model_of(section: DrafterConfig, other: DrafterConfig | None) -> bool:
    keys = {"kind", "path", "device", "dtype"}
    return other is not None and section.model_dump(include=keys) == other.model_dump(include=keys)


class _Shared:
    """A role that is closed by its owner, not by its user."""

    def __init__(self, role: object) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def close(self) -> None:
        pass
