"""On a GPU, drafts change no token of the embedded target, in whatever format its weights are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import QUESTIONS, TARGET, tiny_config
from tests.support.gpu import NEEDS_GPU
from tests.support.lossless import PLAIN, Answer, Job, answer_all
from tests.support.quantized_models import FORMATS, W8A8, quantize

DEVICE = "cuda"
STORED = {
    name: FORMATS[name]
    for name in (
        "AWQ, groups of 32",
        "GPTQ, zeros, groups of 64",
        "GPTQ, 8 bits, zeros",
        "W4A16, zeros",
        "W8A16, int8",
    )
} | {"W8A8": W8A8}
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=7)
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=40),
    "nucleus": SamplingParams(max_tokens=40, temperature=0.8, top_p=0.9, seed=2),
}

pytestmark = [NEEDS_GPU, pytest.mark.timeout(300)]


@pytest.mark.parametrize("form", STORED)
async def test_drafts_change_no_token(form: str, tmp_path: Path) -> None:
    shutil.copytree(TARGET, tmp_path / "plain")
    quantize(tmp_path / "plain", tmp_path / "model", STORED[form])
    config = tiny_config(
        target={"path": tmp_path / "model", "device": DEVICE},
        drafter={"kind": "sps", "path": TARGET, "device": DEVICE},
        coordinator={"profile_seconds": 0},
    )
    with Engine.from_config(config) as engine:
        for name, sampling in SAMPLINGS.items():
            plain = await answers_of(engine, sampling, PLAIN)
            drafted = await answers_of(engine, sampling, DRAFTED)
            for one, other in zip(plain, drafted, strict=True):
                other.assert_same(one)
            assert count_steps(drafted) < 0.7 * count_steps(plain), name
        await engine.stop()


async def answers_of(
    engine: Engine, sampling: SamplingParams, speculation: SpeculationParams
) -> list[Answer]:
    questions = first_per_family(load_questions(QUESTIONS), 1)
    prompts = [[{"role": "user", "content": question.turns[0]}] for question in questions]
    jobs = [Job(prompt, sampling, speculation) for prompt in prompts]

    def ask(job: Job, name: str):
        return engine.stream(job.prompt, job.sampling, job.speculation, name)

    return await answer_all(ask, jobs)


def count_steps(answers: list[Answer]) -> int:
    return sum(answer.num_steps for answer in answers)
