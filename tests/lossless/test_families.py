"""No draft of a published family of diffusion LMs changes an answer, whatever its blocks are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from tests.support.diffusion_families import FAMILIES, save_family
from tests.support.lossless import PLAIN
from tests.support.models import NUM_KNOWN_IDS, make_model, save_tokenizer

SAMPLINGS = (
    SamplingParams(max_tokens=20),
    SamplingParams(max_tokens=20, temperature=0.7, seed=3, ignore_eos=True),
)
SPECULATIONS = (
    SpeculationParams(policy="fixed", num_draft_tokens=3),  # within most blocks
    SpeculationParams(policy="fixed", num_draft_tokens=23, num_outcomes=3),  # over several
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    make_model("qwen2").save_pretrained(path)
    save_tokenizer(path)
    return path


def test_no_draft_on_a_stale_prefix_changes_an_answer(target: Path, tmp_path: Path) -> None:
    """Behind a long prompt: a window is computed again, and the rows before it in idle time."""
    drafter = {
        "path": save_family(tmp_path / "drafter", "dream"),
        "device": "cpu",
        "refresh_every": 4,
        "refresh_tokens": 16,
        "renew_when_idle": True,
    }
    section = {"path": target, "device": "cpu", "max_sequences": 3, "max_model_len": 240}
    coordinator = {"overlap": True, "profile_seconds": 0}
    config = parse_config({"target": section, "drafter": drafter, "coordinator": coordinator})
    rng = random.Random(0)
    prompts = [[rng.randrange(3, NUM_KNOWN_IDS) for _ in range(n)] for n in (200, 90)]
    with Engine.from_config(config) as engine:
        for sampling in SAMPLINGS:
            plain = engine.generate(prompts, sampling, PLAIN)
            for speculation in SPECULATIONS:
                drafted = engine.generate(prompts, sampling, speculation)
                assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
                assert all(any(step.num_draft_tokens for step in one.steps) for one in drafted)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_draft_of_a_family_changes_an_answer(target: Path, tmp_path: Path, name: str) -> None:
    drafter = {
        "path": save_family(tmp_path / "drafter", name),
        "device": "cpu",
        "block_size": FAMILIES[name].configured,
    }
    section = {"path": target, "device": "cpu", "max_sequences": 3, "max_model_len": 160}
    config = parse_config(
        {
            "target": section,
            "drafter": drafter,
            "coordinator": {"overlap": True, "profile_seconds": 0},
        }
    )
    rng = random.Random(name)
    prompts = [[rng.randrange(3, NUM_KNOWN_IDS) for _ in range(n)] for n in (1, 33)]
    with Engine.from_config(config) as engine:
        for sampling in SAMPLINGS:
            plain = engine.generate(prompts, sampling, PLAIN)
            for speculation in SPECULATIONS:
                drafted = engine.generate(prompts, sampling, speculation)
                assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
                assert all(any(step.num_draft_tokens for step in one.steps) for one in drafted)
