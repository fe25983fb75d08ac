"""The command line over an engine that answers without any model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from diffuspec.cli.app import app
from diffuspec.core.config import EngineConfig
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import (
    FinishReason,
    Prompt,
    RequestOutput,
    StepStats,
    TokenIds,
    TokenLogprobs,
)
from diffuspec.engine.completion import Completion
from diffuspec.pairs import PAIRS, parse_config
from diffuspec.telemetry.trace import Tracer
from tests.support.fakes import FAKE_TARGET

STEP = StepStats(
    num_draft_tokens=3,
    num_tree_nodes=3,
    num_accepted_tokens=2,
    num_committed_tokens=3,
    draft_seconds=0.01,
    search_seconds=0.005,
    verify_seconds=0.03,
    step_seconds=0.05,
)
LAST_STEP = StepStats(0, 0, 0, 1, verify_seconds=0.05, step_seconds=0.05)
TEXT = "Grüße, Welt"


class FakeEngine:
    """Says TEXT in two steps, the first two tokens of it drafted; raises its error instead."""

    last: FakeEngine  # the one that was opened last
    error: BaseException | None = None
    num_prompt_tokens = 5

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.prompt: Prompt = ""
        self.sampling = SamplingParams()
        self.is_closed = False
        self.on_plan: Callable[[str], None] = lambda _: None
        self.info = FAKE_TARGET

    @classmethod
    def from_config(cls, config: EngineConfig, tracer: Tracer | None = None) -> FakeEngine:
        cls.last = cls(config)
        if tracer is not None:
            tracer.span("verifier", "verify", 0.0, 1.0)
        return cls.last

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def encode(self, prompt: Prompt) -> TokenIds:
        self.prompt = prompt
        return np.arange(self.num_prompt_tokens, dtype=np.int32)

    async def stream(
        self, prompt: Prompt, sampling: SamplingParams
    ) -> AsyncIterator[RequestOutput]:
        self.sampling = sampling
        if self.error is not None:
            raise self.error
        pieces = ("Gr", "üße", ", ")
        yield RequestOutput((7, 8, 9), 2, pieces, "".join(pieces), self._logprobs(3), None, STEP)
        self.on_plan("verify 1, draft []")
        logprobs, reason = self._logprobs(1), FinishReason.STOP
        yield RequestOutput((2,), 0, ("Welt",), "Welt", logprobs, reason, LAST_STEP)

    async def complete(self, prompt: Prompt, sampling: SamplingParams) -> Completion:
        num_prompt_tokens = len(self.encode(prompt))
        increments = [increment async for increment in self.stream(prompt, sampling)]
        return Completion(
            token_ids=(7, 8, 9, 2),
            text=TEXT,
            finish_reason=FinishReason.STOP,
            logprobs=self._logprobs(4),
            num_prompt_tokens=num_prompt_tokens,
            steps=tuple(increment.step for increment in increments),
            seed=sampling.seed,
        )

    def _logprobs(self, count: int) -> tuple[TokenLogprobs, ...] | None:
        if self.sampling.logprobs is None:
            return None
        return (TokenLogprobs(-0.5, ((7, -0.5), (9, -1.5))),) * count


def embedded_config(**overrides: object) -> EngineConfig:
    sections: Mapping[str, object] = {
        "target": {"path": "tiny/target"},
        "drafter": {"path": "tiny/drafter"},
        "search": {"ngram": "tiny/ngram.bin"},
    }
    return parse_config({**sections, **overrides})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """Replace the engine and the embedded pair; return the class, which knows its last object."""
    fake = type("FakeEngine", (FakeEngine,), {})
    monkeypatch.setattr("diffuspec.engine.engine.Engine", fake)
    monkeypatch.setattr("diffuspec.cli.engine_config.check_exist", lambda _: None)
    others: dict[str, dict[str, object]] = {"hydra": {"kind": "hydra", "path": Path("tiny/hydra")}}
    tiny = replace(PAIRS["tiny"], load_config=embedded_config, other_drafters=lambda: others)
    monkeypatch.setitem(PAIRS, "tiny", tiny)
    return fake


@pytest.fixture
def pair(target_path: Callable[[str], Path], drafter_path: Path) -> tuple[Path, Path]:
    """Directories of a random target and a random drafter."""
    return target_path("qwen2"), drafter_path


@pytest.fixture
def diffuspec(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command in this process: `diffuspec("generate", "Hi").stdout`."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run


def printed(result: Any) -> str:
    """What a command that did not fail has on stdout."""
    assert result.exit_code == 0, result.stderr
    text: str = result.stdout
    return text


def error_line(result: Any, code: int = 2) -> str:
    """The message of a command that failed with one line, and nothing on stdout."""
    ended = result.returncode if hasattr(result, "returncode") else result.exit_code
    assert ended == code, result.stderr
    assert result.stdout == ""
    lines: Sequence[str] = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")
