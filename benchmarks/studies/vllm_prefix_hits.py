"""`make vllm ARGS=--prefix-hits`: drafts behind rows that vLLM restores instead of computing.

Rows of the cache are found there (conversations over a shared prompt), loaded from files by a
connector, or computed again after a preemption. Drafters that read the target's hidden states break
there; those of token ids cannot. Everything is asked twice, so that each figure has one of the same
prompts beside it whose rows were computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.studies.json_worker import JsonWorker
from diffuspec.bench.questions import Question
from diffuspec.bench.text_table import TextTable
from diffuspec.core.errors import ConfigError

SHARED_TOKENS = 1500  # approximate length of the system message that all conversations share
FURTHER = ("Explain this in more detail.", "Now say it in one sentence.")  # later questions
MAX_QUESTION_TOKENS = 80
# Of a small cache, with room for about half of the questions with their answers.
_SMALL = {"block_size": 32, "num_gpu_blocks_override": 12, "max_model_len": 320}


class Start(Protocol):
    """Starts vLLM with a system's drafts; `settings` are further arguments of its `LLM`."""

    def __call__(
        self, system: str, max_sequences: int, settings: Mapping[str, object]
    ) -> AbstractContextManager[JsonWorker]: ...


@dataclass(slots=True)
class _Row:
    """What the same prompts gave in one state of the cache."""

    system: str
    state: str
    answers: list[list[int]] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_accepted: int = 0
    decode_seconds: float = 0.0

    def ask(self, worker: JsonWorker, prompts: Sequence[Sequence[int]], **how: Any) -> None:
        answer = worker.ask(prompts=prompts, **how)
        self.answers += answer["tokens"]
        self.num_prompt_tokens += sum(map(len, prompts))
        self.num_cached_tokens += answer["num_cached_tokens"]
        self.num_preemptions += answer["num_preemptions"]
        self.num_accepted += answer["counts"].get("num_accepted_tokens", 0)
        self.decode_seconds += answer["decode_seconds"]

    def cells(self, plain: Sequence[Sequence[int]]) -> tuple[str, ...]:
        num_tokens = sum(map(len, self.answers))
        rate = (num_tokens - len(self.answers)) / max(self.decode_seconds, 1e-9)
        return (
            self.system,
            self.state,
            f"{self.num_cached_tokens / self.num_prompt_tokens:.0%}",
            str(self.num_preemptions),
            f"{num_tokens / max(num_tokens - self.num_accepted, 1):.2f}",
            f"{rate:.1f}",
            str(sum(own != other for own, other in zip(self.answers, plain, strict=True))),
        )


class Chats:
    """Conversations over one system message; they grow by the answers to them."""

    def __init__(self, tokenizer: Any, text: str, questions: Sequence[Question]) -> None:
        self._tokenizer = tokenizer
        shared = tokenizer.decode(tokenizer.encode(text)[:SHARED_TOKENS])
        first = [question.turns[0] for question in questions]
        self._chats = [
            [{"role": "system", "content": shared}, {"role": "user", "content": turn}]
            for turn in first
            if len(tokenizer.encode(turn)) < MAX_QUESTION_TOKENS
        ]
        self.alone = [self._ids(chat[1:]) for chat in self._chats]  # first questions without it

    def __len__(self) -> int:
        return len(self._chats)

    def prompt(self, number: int) -> list[int]:
        return self._ids(self._chats[number])

    def add(self, number: int, answer: Sequence[int], question: str) -> None:
        """Add an answer, and the next question."""
        said = self._tokenizer.decode(answer, skip_special_tokens=True)
        self._chats[number] += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": question},
        ]

    def _ids(self, chat: list[dict[str, str]]) -> list[int]:
        how = {"add_generation_prompt": True, "return_dict": False}
        return [int(token) for token in self._tokenizer.apply_chat_template(chat, **how)]


def prefix_hits(
    start: Start, systems: Sequence[str], chats: Chats, max_tokens: int, folder: Path
) -> Iterator[TextTable]:
    """Yield a table for each way in which rows come back. The first system is `plain`."""
    prompts = _conversations(start, chats, max_tokens)
    asked = f"{len(prompts)} prompts of {len(chats)} conversations over a shared one"
    rows = [row for system in systems for row in _found(start, system, prompts, max_tokens)]
    yield _table(f"{asked}, their rows computed, then found", rows)
    try:
        rows = [
            row
            for system in systems
            for row in _loaded(start, system, prompts, max_tokens, folder / system)
        ]
        yield _table(f"{asked}, their rows stored in files, then loaded", rows)
    except ConfigError as error:
        yield TextTable("Rows loaded from files", ("vLLM's error",), ((str(error),),))
    rows = [row for system in systems for row in _preempted(start, system, chats, max_tokens)]
    yield _table(f"{len(chats)} questions at once, in a large cache, then in a small one", rows)


def _found(
    start: Start, system: str, prompts: Sequence[list[int]], max_tokens: int
) -> Iterator[_Row]:
    computed, found = _Row(system, "computed"), _Row(system, "found")
    with start(system, 1, {"enable_prefix_caching": True}) as worker:
        for prompt in prompts:
            computed.ask(worker, [prompt], max_tokens=max_tokens, num_at_once=1, forgets=True)
            found.ask(worker, [prompt], max_tokens=max_tokens, num_at_once=1)
    yield from (computed, found)


def _loaded(
    start: Start, system: str, prompts: Sequence[list[int]], max_tokens: int, folder: Path
) -> Iterator[_Row]:
    folder.mkdir(parents=True)
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    with start(system, 1, {"kv_transfer_config": connector}) as worker:
        for state in ("stored", "loaded"):
            row = _Row(system, state)
            for prompt in prompts:
                row.ask(worker, [prompt], max_tokens=max_tokens, num_at_once=1)
            yield row


def _preempted(start: Start, system: str, chats: Chats, max_tokens: int) -> Iterator[_Row]:
    for state, settings in (("large", {}), ("small", _SMALL)):
        row = _Row(system, state)
        with start(system, len(chats), settings) as worker:
            row.ask(worker, chats.alone, max_tokens=2 * max_tokens, num_at_once=len(chats))
        yield row


def _conversations(start: Start, chats: Chats, max_tokens: int) -> list[list[int]]:
    """Return the prompts of all turns, in the order in which users would send them."""
    prompts = []
    with start("plain", 1, {"enable_prefix_caching": True}) as worker:
        for question in (*FURTHER, None):
            for number in range(len(chats)):
                prompt = chats.prompt(number)
                prompts.append(prompt)
                if question is not None:
                    asked = {"max_tokens": max_tokens, "num_at_once": 1}
                    answer = worker.ask(prompts=[prompt], **asked)
                    chats.add(number, answer["tokens"][0], question)
    return prompts


def _table(title: str, rows: Sequence[_Row]) -> TextTable:
    columns = ("system", "rows", "cached", "preempted", "tokens/step", "tokens/s", "other answers")
    plain = rows[0].answers
    return TextTable(title, columns, tuple(row.cells(plain) for row in rows))
