"""Drafts behind rows that vLLM restored: what is asked, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.studies.vllm_prefix_hits import FURTHER, Chats, prefix_hits
from diffuspec.bench.questions import Question
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import tiny
from diffuspec.text.tokenizer import load_tokenizer

ANSWER = [5, 6, 7, 8]


class Counting:
    """An engine that finds all but the last token of prompts that it was asked before."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.settings = settings
        self.known: set[tuple[int, ...]] = set()
        self.asked: list[list[int]] = []

    def ask(self, prompts: Sequence[list[int]], forgets: bool = False, **_: Any) -> dict[str, Any]:
        self.known = set() if forgets else self.known
        found = sum(len(prompt) - 1 for prompt in prompts if tuple(prompt) in self.known)
        self.known |= {tuple(prompt) for prompt in prompts}
        self.asked += prompts
        return {
            "tokens": [ANSWER for _ in prompts],
            "num_cached_tokens": found,
            "num_preemptions": int("num_gpu_blocks_override" in self.settings),
            "counts": {"num_accepted_tokens": 2 * len(prompts)},
            "decode_seconds": 0.5 * len(prompts),
        }


class Engines:
    """Starts engines, which refuse to load from files."""

    def __init__(self) -> None:
        self.started: list[Counting] = []

    @contextmanager
    def __call__(
        self, system: str, max_sequences: int, settings: Mapping[str, object]
    ) -> Iterator[Any]:
        if "kv_transfer_config" in settings:
            raise ConfigError("no files here")
        self.started.append(Counting(settings))
        yield self.started[-1]


def chats() -> Chats:
    questions = [
        Question(1, "qa", ("Who wrote it?",)),
        Question(2, "rag", ("too long " * 200,)),
        Question(3, "qa", ("When?",)),
    ]
    return Chats(load_tokenizer(tiny.TARGET), "All of it is known. " * 20, questions)


def test_conversations_share_a_prompt_and_grow_by_answers(tmp_path: Path):
    engines, asked = Engines(), chats()
    next(prefix_hits(engines, ["plain"], asked, 4, tmp_path))
    prompts = engines.started[0].asked
    assert len(asked) == 2, "the long question is left out"
    assert len(prompts) == 2 * len(FURTHER)
    shared = prompts[0][:40]
    assert all(prompt[:40] == shared for prompt in prompts)
    assert len(prompts[2]) > len(prompts[0]) + len(ANSWER)


def test_each_state_of_the_cache_has_a_row(tmp_path: Path):
    found, loaded, small = prefix_hits(Engines(), ["plain", "ngram"], chats(), 4, tmp_path)
    assert [row[:2] for row in found.cells] == [
        ("plain", "computed"),
        ("plain", "found"),
        ("ngram", "computed"),
        ("ngram", "found"),
    ]
    assert [row[2] for row in found.cells] == ["0%", "99%", "0%", "99%"]
    assert {row[4:] for row in found.cells} == {("2.00", "6.0", "0")}
    assert loaded.cells == (("no files here",),)
    assert [row[3] for row in small.cells] == ["0", "1", "0", "1"]
