"""No draft of a published family of diffusion LMs changes an answer, whatever its blocks are."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


def assert_drafts_change_no_answer(
    target: Path,
    drafter: Mapping[str, Any],
    max_len: int,
    prompt_lengths: Iterable[int],
    seed: int | str,
) -> None:
    section = {"path": target, "device": "cpu", "max_sequences": 3, "max_model_len": max_len}
    coordinator = {"overlap": True, "profile_seconds": 0}
    config = parse_config({"target": section, "drafter": drafter, "coordinator": coordinator})
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, NUM_KNOWN_IDS) for _ in range(n)] for n in prompt_lengths]
    with Engine.from_config(config) as engine:
        for sampling in SAMPLINGS:
            plain = engine.generate(prompts, sampling, PLAIN)
            for speculation in SPECULATIONS:
                drafted = engine.generate(prompts, sampling, speculation)
                assert [answer.token_ids for answer in drafted] == [
                    answer.token_ids for answer in plain
                ]
                assert all(
                    any(step.num_draft_tokens for step in answer.steps) for answer in drafted
                )


def test_no_draft_on_a_stale_prefix_changes_an_answer(target: Path, tmp_path: Path) -> None:
    """Behind a long prompt: a window is computed again, and the rows before it in idle time."""
    drafter = {
        "path": save_family(tmp_path / "drafter", "dream"),
        "device": "cpu",
        "refresh_every": 4,
        "refresh_tokens": 16,
        "renew_when_idle": True,
    }
    assert_drafts_change_no_answer(target, drafter, 240, (200, 90), 0)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_draft_of_a_family_changes_an_answer(target: Path, tmp_path: Path, name: str) -> None:
    drafter = {
        "path": save_family(tmp_path / "drafter", name),
        "device": "cpu",
        "block_size": FAMILIES[name].configured,
    }
    assert_drafts_change_no_answer(target, drafter, 160, (1, 33), name)
