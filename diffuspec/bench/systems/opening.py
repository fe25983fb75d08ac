"""Creates systems from their names: ours, around one engine, and transformers' `generate`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from diffuspec.bench.systems.answer import Answer, System
from diffuspec.bench.systems.engine_system import EngineSystem, sibling
from diffuspec.bench.systems.naming import (
    TRANSFORMERS_PROMPT_LOOKUP,
    TRANSFORMERS_SYSTEMS,
    config_for,
    speculation_for,
)
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.engine.engine import Engine
from diffuspec.text.quiet import quiet

_PROMPT_LOOKUP_TOKENS = 10


class TransformersSystem:
    """Greedy `generate` of a transformers model."""

    def __init__(
        self,
        name: str,
        model: Any,
        eos_token_ids: Sequence[int],
        prompt_lookup_num_tokens: int | None,
    ) -> None:
        self._name = name
        self._model = model
        self._eos_token_ids = list(eos_token_ids)
        self._prompt_lookup_num_tokens = prompt_lookup_num_tokens
        self._num_forwards = 0

    @property
    def name(self) -> str:
        return self._name

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        input_ids = torch.tensor([list(prompt_ids)], device=self._model.device)
        config = self._generation_config(max_tokens)
        self._num_forwards = 0
        hook = self._model.register_forward_hook(self._count)
        try:
            started = time.perf_counter()
            output = self._model.generate(
                input_ids, attention_mask=torch.ones_like(input_ids), generation_config=config
            )
            token_ids = output[0, input_ids.shape[1] :].tolist()
            seconds = time.perf_counter() - started
        finally:
            hook.remove()
        return Answer(self._cut(token_ids), seconds, self._num_forwards)

    def _generation_config(self, max_tokens: int) -> GenerationConfig:
        return _generation_config(
            max_new_tokens=max_tokens,
            do_sample=False,
            use_cache=True,
            eos_token_id=self._eos_token_ids or None,
            pad_token_id=self._eos_token_ids[0] if self._eos_token_ids else 0,
            prompt_lookup_num_tokens=self._prompt_lookup_num_tokens,
        )

    def _cut(self, token_ids: list[int]) -> tuple[int, ...]:
        """Return the tokens up to and including EOS."""
        ends = [i for i, token_id in enumerate(token_ids) if token_id in self._eos_token_ids]
        return tuple(token_ids[: ends[0] + 1] if ends else token_ids)

    def _count(self, *_: object) -> None:
        self._num_forwards += 1


def load_transformers_model(path: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """Load a checkpoint as a user of transformers would. Raises ModelLoadError.

    Its generation settings (penalties, temperature) are dropped, so that it decodes greedily.
    """
    try:
        with quiet():
            model: Any = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except Exception as error:  # transformers, safetensors and torch may raise anything
        raise ModelLoadError(f"{path}: transformers cannot load it: {error}") from error
    model.generation_config = _generation_config()
    return model.eval().to(device)


def _generation_config(**fields: Any) -> GenerationConfig:
    make: Any = GenerationConfig  # an untyped class
    config: GenerationConfig = make(**fields)
    return config


@contextlib.contextmanager
def open_systems(
    engine: Engine,
    names: Sequence[str],
    config: EngineConfig | None = None,
    *,
    whole_drafts: bool = False,
) -> Iterator[list[System]]:
    """Yield the named systems around an engine, in the order of the names.

    Each of ours has its own loop over the engine's models, so that none benefits from costs and
    acceptance learnt by another. `config` may have more drafters than the engine has loaded;
    systems load the others. Raises ConfigError, ModelLoadError.
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
    """Load a second copy of the target, on the same device and in the same type."""
    target: Any = engine.verifier
    cache = target.runner.cache.store
    return load_transformers_model(engine.config.target.path, cache.device, cache.dtype)
