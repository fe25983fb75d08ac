"""A pair of small random models on disk, and systems that answer as they are told."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diffuspec.bench.run import Record
from diffuspec.bench.systems.answer import Answer
from diffuspec.core.config import EngineConfig
from diffuspec.core.types import StepStats
from diffuspec.pairs import parse_config
from tests.support.checkpoints import EOS_IDS, MASK_TOKEN_ID


class FakeTokenizer:
    """Words are numbers; a message is its role's length and its words."""

    chat_template: str | None = "any"

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and add_generation_prompt
        return " ".join(f"{len(m['role'])} {m['content']}" for m in messages)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(map(str, token_ids))


class FakeSystem:
    """Answers by a function of the prompt, and remembers what it was asked."""

    def __init__(
        self, name: str, reply: Callable[[Sequence[int]], Sequence[int]], log: list[str]
    ) -> None:
        self.name = name
        self._reply = reply
        self._log = log
        self.prompts: list[list[int]] = []

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        self._log.append(self.name)
        self.prompts.append(list(prompt_ids))
        token_ids = tuple(self._reply(prompt_ids))[:max_tokens]
        return Answer(token_ids, seconds=1.0, num_steps=len(token_ids))


def make_record(
    system: str = "plain",
    token_ids: Sequence[int] = (1, 2),
    seconds: float = 1.0,
    *,
    family: str = "qa",
    question_id: int = 1,
    turn: int = 0,
    repeat: int = 0,
    num_steps: int | None = None,
    steps: tuple[StepStats, ...] = (),
    forward_seconds: float | None = None,
) -> Record:
    count = num_steps or len(steps) or len(token_ids)
    answer = Answer(tuple(token_ids), seconds, count, steps, forward_seconds)
    return Record(system, family, question_id, turn, repeat, answer)


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def pair(
    target_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Directories of a target that seldom ends, and of a drafter with the same weights."""
    folder = tmp_path_factory.mktemp("pair")
    fields: dict[str, object] = {"eos_token_id": EOS_IDS[0], "max_position_embeddings": 192}
    target = _copy(target_path("qwen2"), folder / "target", fields)
    fields |= {"mask_token_id": MASK_TOKEN_ID, "diffusion_attention": "block_causal"}
    return target, _copy(target, folder / "drafter", fields)


@pytest.fixture(scope="session")
def pair_config(pair: tuple[Path, Path]) -> EngineConfig:
    target, drafter = ({"path": path, "device": "cpu"} for path in pair)
    return parse_config({"target": target | {"max_sequences": 1}, "drafter": drafter})


def _copy(source: Path, path: Path, fields: dict[str, object]) -> Path:
    """Copy a checkpoint with other fields in its configuration."""
    shutil.copytree(source, path)
    (path / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    return path
