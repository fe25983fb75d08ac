"""A request that kills the engine process at its tenth token ends; those beside it go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from diffuspec.core.errors import FatalRequestError
from diffuspec.core.params import SamplingParams
from diffuspec.data_parallel import process
from diffuspec.data_parallel.engine import DataParallelEngine
from diffuspec.engine.engine import Engine
from tests.support import deadly_worker
from tests.support.engines import short_tiny_config
from tests.support.forked import forked

pytestmark = pytest.mark.process

SAMPLING = SamplingParams(max_tokens=60, ignore_eos=True)
QUESTIONS = ("Who are you?", "What is 12 plus 30?", "Hi!", "Name a colour.", "And you?", "Why?")
KILLER, *OTHERS = [[{"role": "user", "content": text}] for text in QUESTIONS]


def test_a_request_that_kills_engines_ends_and_those_beside_it_go_on(
    one: Engine, monkeypatch, tmp_path
):
    answers = one.generate([KILLER, *OTHERS], SAMPLING)
    deadly = [*one.encode(KILLER).tolist(), *answers[0].token_ids[:10]]
    monkeypatch.setenv(deadly_worker.DEADLY, json.dumps(deadly))
    monkeypatch.setenv(deadly_worker.DEATHS, str(tmp_path / "deaths"))
    monkeypatch.setattr(process, "PYTHON", tuple(forked(deadly_worker.__file__)))
    config = short_tiny_config().model_copy(update={"data_parallel_size": 1})

    async def ask(engine: DataParallelEngine) -> list[Any]:
        prompts = [KILLER, *OTHERS]
        asked = [engine.complete(prompt, SAMPLING) for prompt in prompts]
        return await asyncio.gather(*asked, return_exceptions=True)

    with DataParallelEngine.from_config(config, num_threads=1) as engine:
        ended, *others = engine._run(ask(engine))
    assert isinstance(ended, FatalRequestError) and "lost 3 times" in str(ended)
    assert [other.token_ids for other in others] == [right.token_ids for right in answers[1:]]
    sizes = (tmp_path / "deaths").read_text().split()
    assert len(sizes) == 3 and sizes[-1] == "1", "the last time alone"
