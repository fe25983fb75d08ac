"""The systems compared by the benchmark.

Ours share one engine, hence one target, and differ in how they draft. Those of transformers run
`generate` on a second copy of the same weights, with the same threads and EOS ids.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError, ModelLoadError
from diffuspec.core.params import DraftLengthPolicy, SamplingParams, SpeculationParams, TreeShape
from diffuspec.core.types import StepStats
from diffuspec.drafters import KINDS, LocalDrafter, Target, load_drafter
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.path_search import make_path_search
from diffuspec.engine import Engine

BASELINE = "plain"
TRANSFORMERS_GREEDY = "transformers_greedy"
TRANSFORMERS_PROMPT_LOOKUP = "transformers_prompt_lookup"
TREE_SHAPES: tuple[TreeShape, ...] = ("path", "beams", "best_first")

# A drafter of each kind that needs no model, and the configuration's own, sized by its cost.
DRAFTER_SYSTEMS = ("diffuspec", *(name for name, kind in KINDS.items() if not kind.has_model))

ENGINE_SYSTEMS = (BASELINE, "paper", *(f"cost_aware_{shape}" for shape in TREE_SHAPES))
TRANSFORMERS_SYSTEMS = (TRANSFORMERS_GREEDY, TRANSFORMERS_PROMPT_LOOKUP)
DEFAULT_SYSTEM = "cost_aware_best_first"  # how requests are drafted that do not say
ALL_SYSTEMS = (*ENGINE_SYSTEMS, *TRANSFORMERS_SYSTEMS)

PROMPT_LOOKUP_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and its cost."""

    token_ids: tuple[int, ...]  # up to and including EOS
    seconds: float  # wall clock of the whole call, prefill included
    num_steps: int  # forwards of the target that gave tokens
    steps: tuple[StepStats, ...] = ()  # empty for transformers' systems
    forward_seconds: float | None = None  # in the forwards of both models; None: unknown


class System(Protocol):
    """A way of continuing prompts greedily."""

    @property
    def name(self) -> str: ...

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        """Answer one prompt, with nothing cached from earlier prompts."""
        ...


def speculation_for(name: str, defaults: SpeculationParams) -> SpeculationParams:
    """Return how a system of ours drafts; its name overrides the defaults.

    The names are plain, paper, cost_aware_SHAPE, fixed_K_SHAPE for a draft length K, and those of
    DRAFTER_SYSTEMS. Raises ConfigError.
    """
    if name == "lookahead":  # whose window is verified at any price
        return replace(defaults, policy="fixed", num_draft_tokens=12, max_nodes=56, drafter=None)
    if name in DRAFTER_SYSTEMS:
        return replace(defaults, policy="cost_aware", tree_shape="best_first", drafter=None)
    if name == BASELINE:
        return SpeculationParams(policy="off")
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
        runners = _runners(self._engine)
        forget_prefixes(self._engine)
        sampling = SamplingParams(max_tokens=max_tokens)
        forwards = sum(runner.forward_seconds for runner in runners)
        started = time.perf_counter()
        (completion,) = self._engine.generate([list(prompt_ids)], sampling, self._speculation)
        seconds = time.perf_counter() - started
        forwards = sum(runner.forward_seconds for runner in runners) - forwards
        steps = tuple(step for step in completion.steps if step.num_committed_tokens)
        return Answer(completion.token_ids, seconds, len(steps), completion.steps, forwards)


def _runners(engine: Engine) -> list[Any]:
    """Return the runner of the target and, if there is one, of the drafter."""
    roles: list[Any] = [engine.verifier]
    if engine.lattice_model is not None:
        roles.append(engine.lattice_model)
    return [role.runner for role in roles]


def forget_prefixes(engine: Engine) -> None:
    """Empty its models' caches, so that no system finds the prompt of the one before."""
    for runner in _runners(engine):
        for slot in range(runner.cache.num_slots):
            runner.cache.truncate(slot, 0)


class TransformersSystem:
    """Greedy `generate` of a transformers model."""

    def __init__(
        self,
        name: str,
        model: Any,
        eos_token_ids: Sequence[int],
        prompt_lookup_num_tokens: int | None = None,
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
        with _no_progress_bar():
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
    make: Any = GenerationConfig  # which has no types
    config: GenerationConfig = make(**fields)
    return config


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    log: Any = transformers.utils.logging
    was_enabled = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            log.enable_progress_bar()


@contextlib.contextmanager
def open_systems(engine: Engine, names: Sequence[str]) -> Iterator[list[System]]:
    """Yield the named systems around an engine, in the order of the names.

    Each of ours has its own loop over the engine's models, so that none profits from the costs and
    acceptance that another has learnt. Raises ConfigError, ModelLoadError.
    """
    defaults = engine.default_speculation
    speculations = {
        name: speculation_for(name, defaults) for name in names if name not in TRANSFORMERS_SYSTEMS
    }
    model: Any = None
    with contextlib.ExitStack() as stack:
        systems: list[System] = []
        for name in names:
            if name in speculations:
                own = stack.enter_context(sibling(engine, _config_of(name, engine.config)))
                systems.append(EngineSystem(name, own, speculations[name]))
                continue
            if model is None:
                cache = _runners(engine)[0].cache
                model = load_transformers_model(
                    engine.config.target.path, cache.device, cache.dtype
                )
            lookup = PROMPT_LOOKUP_TOKENS if name == TRANSFORMERS_PROMPT_LOOKUP else None
            eos_token_ids = engine.verifier.info.eos_token_ids
            systems.append(TransformersSystem(name, model, eos_token_ids, lookup))
        yield systems


def _config_of(name: str, config: EngineConfig) -> EngineConfig:
    """Return the configuration with the one drafter that a system of ours has."""
    drafter = config.drafter
    if name in KINDS and not KINDS[name].has_model:
        drafter = KINDS[name].config()
    return config.model_copy(update={"drafter": drafter, "drafters": {}})


def sibling(engine: Engine, config: EngineConfig | None = None) -> Engine:
    """Return another engine over the same target, and over the same drafter if config has it.

    Only one of the two may work at a time; both write to the same trace. Closing it leaves the
    shared roles open.
    """
    config = config or engine.config
    verifier: Any = _Shared(engine.verifier)
    if config.drafter is None:
        return Engine(config, verifier, None, engine.tokenizer, tracer=engine.tracer)
    drafter: LocalDrafter
    if config.drafter == engine.config.drafter and engine.lattice_model is not None:
        lattice_model: Any = _Shared(engine.lattice_model)
        drafter = DiffuSpecDrafter(
            lattice_model, make_path_search(config.search, verifier.info, config.target.path)
        )
    else:
        target = Target(verifier.info, None, config.target.path, verifier)
        drafter = load_drafter(config.drafter, config.search, target)
    return Engine(config, verifier, drafter, engine.tokenizer, (drafter,), engine.tracer)


class _Shared:
    """A role that its owner closes."""

    def __init__(self, role: object) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def close(self) -> None:
        pass
