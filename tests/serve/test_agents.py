"""Agents of other makers, which call a function and go on with its result, against a real server.

They are in an environment of their own, .venv-agents, which `make models-test` makes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import TokenIds
from diffuspec.serve.settings import ServeSettings
from tests.support.chat_models import QWEN, chat_tokenizer
from tests.support.scripted import ScriptedVerifier, scripted_engine
from tests.support.service import MODEL, Service, serving
from tests.support.weather import CALL

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-agents" / "bin" / "python"
PROGRAMS = ("openai_agents", "langchain", "pydantic_agent", "lite_llm")
RESULT = "22 degrees"
ANSWER = "It is 22 degrees in Ulm."

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason="no agents: make models-test installs them"),
]


class Guide(ScriptedVerifier):
    """Calls a function, unless the prompt has its result: then it answers."""

    def next_token(self, prefix: Sequence[int] | TokenIds, sampling: SamplingParams) -> int:
        prompt = [int(one) for one in prefix[: self._num_prompt_tokens]]
        self.say(ANSWER if RESULT in self._tokenizer.decode(prompt) else f"I look.\n{CALL}")
        return super().next_token(prefix, sampling)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("agents")
    tokenizer = chat_tokenizer(QWEN)
    tokenizer.save_pretrained(path)

    def make_engine() -> Any:
        return scripted_engine(path, tokenizer, (tokenizer.eos_token_id,), Guide)[1]

    with serving(make_engine, ServeSettings()) as service:
        yield service


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_agent_calls_a_function_and_answers_with_its_result(program, service):
    file = ROOT / "tests" / "serve" / "agents" / f"{program}.py"
    ran = subprocess.run(
        [PYTHON, file, f"{service.url}/v1", MODEL], capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.pop("num_prompts", 20) == 20
    assert found == {"cities": ["Ulm", "Ulm"], "texts": [ANSWER, ANSWER]}
