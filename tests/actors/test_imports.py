"""What roles without a model import: each has a process of its own, and torch takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCORER = """
import asyncio, sys
import actors.placement, actors.service.directory
from actors.roles.path_scorer import PathScorerActor
from actors.settings import parse_pipeline
from diffuspec.core.interfaces import TargetInfo
from diffuspec.rpc.security import Security

async def serve():
    config = parse_pipeline({"engine": {"preset": "tiny"}})
    scorer = PathScorerActor(config, Security("secret"))
    await scorer.start(TargetInfo(4096, 512, 4, (0,)), "127.0.0.1")
    await scorer.stop()

asyncio.run(serve())
print([name for name in ("torch", "transformers") if name in sys.modules])
"""

COORDINATOR_AND_INGRESS = """
import sys
import actors.placement, actors.roles.coordinator, actors.service.ingress
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.prompt import encode_prompt
from diffuspec.text.tokenizer import load_tokenizer

encode_prompt([{"role": "user", "content": "Hi"}], load_tokenizer(TARGET), 512)
print([name for name in ("torch",) if name in sys.modules])
"""


@pytest.mark.process
@pytest.mark.parametrize("program", [SCORER, COORDINATOR_AND_INGRESS])
def test_roles_without_a_model_import_no_torch_and_a_scorer_no_transformers(program):
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
