"""A random target, and answers it could have given."""

import json
import random
from pathlib import Path

import pytest

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from diffuspec.pairs.factory.examples import NUM_TOP_IDS
from tests.support.checkpoints import save_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that count upwards from the last token of their prompts, with probabilities."""
    path, rng = tmp_path_factory.mktemp("answers") / "answers.jsonl", random.Random(0)
    with path.open("w") as file:
        for _ in range(80):
            prompt = [rng.randrange(40, 60) for _ in range(rng.randrange(3, 9))]
            answer = [prompt[-1] + i for i in range(1, 17)]
            others = [[token, *range(100, 99 + NUM_TOP_IDS)] for token in answer]
            shares = [[200, 1, 0, 0, 0, 0, 0, 0] for _ in answer]
            line = {
                "prompt": prompt,
                "answer": answer,
                "top_ids": [one for row in others for one in row],
                "top_probs": [one for row in shares for one in row],
            }
            file.write(json.dumps(line) + "\n")
    return path


def assert_drafts(target: Path, section: dict[str, object]) -> None:
    """Check that a drafter drafts for a target, and that answers stay those of plain decoding."""
    config = parse_config({"target": {"path": target, "device": "cpu"}, "drafter": section})
    with Engine.from_config(config) as engine:
        plain, drafted = (
            engine.generate([[50, 51, 52]], SamplingParams(max_tokens=24, ignore_eos=True), how)[0]
            for how in (SpeculationParams(policy="off"), SpeculationParams(policy="fixed"))
        )
    assert drafted.token_ids == plain.token_ids and drafted.stats.num_drafts > 0
