"""A target that says what a test has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import TokenIds, Verdict, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, always_right, oracle_of


class ScriptedVerifier(FakeVerifier):
    """Its answers are the script, and then the end."""

    def __init__(self, tokenizer: Any, eos_token_ids: tuple[int, ...]) -> None:
        vocab_size = max(tokenizer.get_vocab().values()) + 1
        super().__init__(
            replace(
                FAKE_TARGET,
                vocab_size=vocab_size,
                max_model_len=4096,
                eos_token_ids=eos_token_ids,
            )
        )
        self._tokenizer = tokenizer
        self.script: list[int] = []
        self._num_prompt_tokens = 0

    def say(self, text: str) -> None:
        """Answer every request from now on with this text."""
        backend = self._tokenizer.backend_tokenizer
        self.script = backend.encode(text, add_special_tokens=False).ids

    def next_token(self, prefix: Sequence[int] | TokenIds, sampling: SamplingParams) -> int:
        place = len(prefix) - self._num_prompt_tokens
        return self.script[place] if place < len(self.script) else self.info.eos_token_ids[0]

    def continuation(
        self, prefix: Sequence[int] | TokenIds, num_tokens: int, sampling: SamplingParams
    ) -> list[int]:
        output: list[int] = []
        for _ in range(num_tokens):
            output.append(self.next_token([*prefix, *output], sampling))
        return output

    def _verify(self, request: VerifyRequest) -> Verdict:
        self._num_prompt_tokens = request.num_prompt_tokens
        return super()._verify(request)


def scripted_engine(
    path: Path,
    tokenizer: Any,
    eos_token_ids: tuple[int, ...],
    kind: type[ScriptedVerifier] = ScriptedVerifier,
) -> tuple[ScriptedVerifier, Engine]:
    """Return a scripted target and an engine over it, whose drafter knows the script."""
    verifier = kind(tokenizer, eos_token_ids)
    sections = {"target": {"path": path}, "coordinator": {"profile_seconds": 0}}
    drafter = FakeDrafter(oracle_of(verifier), always_right)
    return verifier, Engine(parse_config(sections), verifier, drafter, tokenizer)
