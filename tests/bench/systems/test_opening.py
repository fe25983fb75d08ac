"""The systems on a small random pair: same tokens, counted passes, nothing remembered."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from diffuspec.bench.systems.answer import System
from diffuspec.bench.systems.engine_system import EngineSystem, sibling
from diffuspec.bench.systems.naming import (
    ALL_SYSTEMS,
    BASELINE,
    TRANSFORMERS_GREEDY,
    TRANSFORMERS_PROMPT_LOOKUP,
    config_for,
)
from diffuspec.bench.systems.opening import (
    TransformersSystem,
    load_transformers_model,
    open_systems,
)
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import AutoregressiveConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.params import SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.pages.table import PageTable

PROMPT = [1, 20, 30, 40, 20, 30]
OURS = [name for name in ALL_SYSTEMS if name != BASELINE and not name.startswith("transformers")]


@pytest.fixture(scope="module")
def engine(pair_config: EngineConfig) -> Iterator[Engine]:
    with Engine.from_config(pair_config) as engine:
        yield engine


@pytest.fixture(scope="module")
def systems(engine: Engine) -> Iterator[dict[str, System]]:
    with open_systems(engine, ALL_SYSTEMS) as opened:
        yield {system.name: system for system in opened}


def test_all_systems_are_opened_in_the_order_of_their_names(systems):
    assert tuple(systems) == ALL_SYSTEMS


@pytest.mark.parametrize("name", [name for name in ALL_SYSTEMS if name != BASELINE])
def test_every_system_gives_the_tokens_of_plain_decoding(systems, name):
    expected = systems[BASELINE].answer(PROMPT, 24)
    assert systems[name].answer(PROMPT, 24).token_ids == expected.token_ids
    assert len(expected.token_ids) == expected.num_steps == 24


@pytest.mark.parametrize("name", OURS)
def test_our_answers_carry_their_steps(systems, name):
    answer = systems[name].answer(PROMPT, 24)
    assert answer.num_steps == len(answer.steps) <= 24 - (name == "paper")  # drafts save steps
    assert sum(step.num_committed_tokens for step in answer.steps) == 24
    assert all(step.fallback is None for step in answer.steps)
    assert answer.forward_seconds is not None and 0 < answer.forward_seconds < answer.seconds


def test_the_passes_of_transformers_are_counted(systems):
    greedy = systems[TRANSFORMERS_GREEDY].answer(PROMPT, 24)
    lookup = systems[TRANSFORMERS_PROMPT_LOOKUP].answer(PROMPT, 24)
    assert greedy.num_steps == 24
    assert 0 < lookup.num_steps < 24
    assert greedy.steps == () and greedy.forward_seconds is None


@pytest.mark.parametrize("prompt_lookup_num_tokens", [None, 10])
def test_answers_of_transformers_end_with_eos(pair, systems, prompt_lookup_num_tokens):
    token_ids = systems[BASELINE].answer(PROMPT, 24).token_ids
    eos = next(token_id for token_id in token_ids if token_id != token_ids[0])
    model = load_transformers_model(pair[0], torch.device("cpu"), torch.float32)
    system = TransformersSystem("any", model, (9999, eos), prompt_lookup_num_tokens)
    answer = system.answer(PROMPT, 24)
    assert answer.token_ids == token_ids[: token_ids.index(eos) + 1]


@pytest.mark.parametrize("name", ["paper", "sps"])
def test_no_prompt_is_remembered_from_an_answer_to_the_next(pair, engine, monkeypatch, name):
    num_cached: dict[object, int] = {}
    monkeypatch.setattr(KVCache, "acquire", spy_on(KVCache.acquire, num_cached))
    drafters = {"sps": AutoregressiveConfig(path=pair[1], device="cpu")}
    config = engine.config.model_copy(update={"drafters": drafters})
    always = SpeculationParams(policy="fixed", num_draft_tokens=2)  # whatever drafts cost here
    with sibling(engine, config_for(name, config)) as own:
        system = EngineSystem(name, own, always)
        system.answer(PROMPT, 4)
        num_cached.clear()
        system.answer(PROMPT, 4)
        assert list(num_cached.values()) == [0, 0]  # the drafter's and the target's


def runner_of(model: Any) -> Any:
    """Return what runs a target or a diffusion LM."""
    return model.runner


def spy_on(
    acquire: Callable[..., PageTable], num_cached: dict[object, int]
) -> Callable[..., PageTable]:
    """Note what each cache has of the first prefix that it is asked for."""

    def spy(cache: KVCache, *arguments: Any, **options: Any) -> PageTable:
        table = acquire(cache, *arguments, **options)
        num_cached.setdefault(cache, table.length)
        return table

    return spy


def test_a_sibling_shares_the_models_and_leaves_them_open(engine):
    with sibling(engine) as other:
        assert runner_of(other.verifier) is runner_of(engine.verifier)
        first = EngineSystem("a", other, SpeculationParams(policy="off")).answer(PROMPT, 4)
    with sibling(engine) as other:
        again = EngineSystem("a", other, SpeculationParams(policy="off")).answer(PROMPT, 4)
    assert first.token_ids == again.token_ids


def test_a_sibling_with_other_settings_of_the_drafter_shares_its_model(engine, tmp_path):
    drafter = engine.config.drafter
    assert drafter is not None
    changed = drafter.model_copy(update={"num_refinement_steps": 2})
    paper = SpeculationParams(policy="paper", tree_shape="path")
    drafts = []
    for section in (drafter, changed, drafter):
        with sibling(engine, engine.config.model_copy(update={"drafter": section})) as other:
            assert runner_of(other.lattice_model) is runner_of(engine.lattice_model)
            drafts.append(EngineSystem("a", other, paper).answer(PROMPT, 24))
    assert drafts[0].num_steps == drafts[2].num_steps != drafts[1].num_steps
    shutil.copytree(engine.config.target.path, tmp_path / "copy")
    elsewhere = AutoregressiveConfig(path=tmp_path / "copy", device="cpu")
    with sibling(engine, engine.config.model_copy(update={"drafter": elsewhere})) as other:
        assert other.lattice_model is None
        assert runner_of(other.verifier) is runner_of(engine.verifier)


def test_what_transformers_cannot_load_is_our_error(tmp_path):
    with pytest.raises(ModelLoadError, match="transformers cannot load it"):
        load_transformers_model(tmp_path, torch.device("cpu"), torch.float32)
