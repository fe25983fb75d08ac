"""An engine of another make, as a draft server sees one: it verifies chains with a fake target."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.draft_server.service import DraftService
from diffuspec.draft_server.session import Session
from diffuspec.v1.draft_service_pb2 import EngineStep, Hello, RequestRow, StepDrafts
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, Strategy, oracle_of

TARGET = FakeVerifier()
GREEDY = SamplingParams()


class FakeTokenizer:
    """The vocabulary of the fake target."""

    def get_vocab(self) -> dict[str, int]:
        return {f"t{number}": number for number in range(FAKE_TARGET.vocab_size)}


class TimedDrafter(FakeDrafter):
    """A fake drafter whose calls take time."""

    def __init__(self, strategy: Strategy, seconds: float = 0.0) -> None:
        super().__init__(oracle_of(TARGET), strategy)
        self.seconds = seconds

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Any]:
        await asyncio.sleep(self.seconds)
        return await super().draft(requests)


def make_service(drafter: FakeDrafter, **config: object) -> DraftService:
    """Return the service of a fake drafter."""
    given = {"drafter": {"kind": "pld"}, "tokenizer": "unused", "profile_seconds": 0, **config}
    settings = DraftServerConfig.model_validate(given)
    return DraftService(settings, drafter, FAKE_TARGET, FakeTokenizer())


def make_hello(**given: Any) -> Hello:
    values = {
        "protocol_version": 1,
        "engine": "fake 1.0",
        "vocab_size": FAKE_TARGET.vocab_size,
        "max_model_len": 4096,
        "max_requests": 8,
        "max_draft_tokens": 8,
        **given,
    }
    return Hello(**values)


@dataclass
class FakeEngine:
    """Decodes prompts with the drafts of a session, all at a time."""

    session: Session
    prompts: dict[str, list[int]]
    step_seconds: float = 0.03
    row_seconds: float = 0.001  # for each drafted token
    transport_seconds: float = 0.0  # of a step and its answer
    deadline_seconds: float = 1.0
    texts: dict[str, list[int]] = field(default_factory=dict)
    answers: list[StepDrafts] = field(default_factory=list)
    num_steps: int = 0
    waits: list[float] = field(default_factory=list)
    before_step: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.texts = {name: [*tokens] for name, tokens in self.prompts.items()}
        self._held = dict.fromkeys(self.prompts, 0)
        self._ended: list[str] = []
        self._verify = self._wait = 0.0
        self._num_silent = self._num_left = 0  # steps not reported, and still not to be
        for name in self.texts:  # the first token comes with the prompt
            self._commit(name, [])

    def output(self, name: str) -> list[int]:
        return self.texts[name][len(self.prompts[name]) :]

    def end(self, name: str) -> None:
        del self.texts[name]
        self._ended.append(name)

    def report_times(self, verify: float, wait: float, num_silent_steps: int) -> None:
        """Report these with the next step, whatever it took."""
        self._verify, self._wait, self._num_silent = verify, wait, num_silent_steps

    async def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self._num_left:
                await self._go_on()
            else:
                await self.step()

    async def _go_on(self) -> None:
        """Take a step that is not reported."""
        self._num_left -= 1
        self._num_silent += 1
        self._verify += self.step_seconds
        await asyncio.sleep(self.step_seconds)
        for name in self.texts:
            self._commit(name, [])

    async def step(self) -> StepDrafts:
        self.before_step()
        self.num_steps += 1
        rows = [self._row(name) for name in self.texts]
        clock = asyncio.get_running_loop().time
        started = clock()
        await asyncio.sleep(self.transport_seconds)
        answer = await self.session.step(
            EngineStep(
                step_id=self.num_steps,
                rows=rows,
                ended_request_ids=self._ended,
                deadline_seconds=self.deadline_seconds,
                verify_seconds=self._verify,
                wait_seconds=self._wait,
                num_silent_steps=self._num_silent,
            )
        )
        self.session.draft_ahead()
        self._ended = []
        self._num_silent, self._num_left = 0, answer.num_silent_steps
        self._wait = clock() - started
        self.waits.append(self._wait)
        self.answers.append(answer)
        num_drafted = sum([len(row.token_ids) for row in answer.rows])
        self._verify = self.step_seconds + self.row_seconds * num_drafted
        await asyncio.sleep(self._verify)
        for name, row in zip(self.texts, answer.rows, strict=True):
            self._commit(name, [*row.token_ids])
        return answer

    def _row(self, name: str) -> RequestRow:
        text, held = self.texts[name], self._held[name]
        self._held[name] = len(text)
        prompt = 0 if held else len(self.prompts[name])
        return RequestRow(
            request_id=name, base_length=held, token_ids=text[held:], num_prompt_tokens=prompt
        )

    def _commit(self, name: str, draft: list[int]) -> None:
        text = self.texts[name]
        for token_id, own in zip(
            [*draft, None], TARGET.continuation(text, 1 + len(draft), GREEDY), strict=True
        ):
            text.append(own)
            if own != token_id:
                return


def sources(answers: Sequence[StepDrafts]) -> list[int]:
    return [row.source for answer in answers for row in answer.rows]
