"""Training examples: prompts with the target's own answers, read from JSONL, in batches.

A line holds `prompt` and `answer`, lists of token ids, and optionally the target's probabilities:
`top_ids`, a fixed number of likeliest ids for each token of the answer, and `top_probs`, their
probabilities in 255ths, both flattened.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.core.errors import ConfigError
from diffuspec.pairs.factory.answer_files import PATTERN

NUM_TOP_IDS = 8  # likeliest ids stored for each answer token with probabilities
PROBABILITY_UNITS = 255
HELD_OUT_EVERY = 40  # the last of every 40 examples is never trained on
BATCHES_PER_CHUNK = 8
NUM_TYPICAL_EXAMPLES = 4


@dataclass(frozen=True, slots=True)
class Likely:
    """The target's likeliest tokens at the last tokens of an example."""

    token_ids: NDArray[np.int32]  # [num_answer_tokens, top]
    probabilities: NDArray[np.uint8]  # [num_answer_tokens, top], in 255ths


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation. is_answer marks the tokens of answers."""

    token_ids: list[int]
    is_answer: list[bool]
    likely: Likely | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples padded on the right with id 0."""

    token_ids: torch.Tensor  # [B, N]
    is_answer: torch.Tensor  # [B, N]
    is_token: torch.Tensor  # [B, N], False for padding
    top_ids: torch.Tensor | None = None  # [B, N, top]; None unless all examples have them
    top_probs: torch.Tensor | None = None  # [B, N, top]

    def to(self, device: torch.device) -> Batch:
        top_ids = None if self.top_ids is None else self.top_ids.to(device)
        top_probs = None if self.top_probs is None else self.top_probs.to(device)
        marks = self.is_answer.to(device), self.is_token.to(device)
        return Batch(self.token_ids.to(device), *marks, top_ids, top_probs)


def pad(examples: Sequence[Example]) -> Batch:
    longest = max(example.num_tokens for example in examples)
    token_ids = torch.zeros(len(examples), longest, dtype=torch.long)
    is_answer = torch.zeros(len(examples), longest, dtype=torch.bool)
    is_token = torch.zeros_like(is_answer)
    for row, example in enumerate(examples):
        token_ids[row, : example.num_tokens] = torch.tensor(example.token_ids)
        is_answer[row, : example.num_tokens] = torch.tensor(example.is_answer)
        is_token[row, : example.num_tokens] = True
    return Batch(token_ids, is_answer, is_token, *_pad_likely(examples, longest))


def _pad_likely(
    examples: Sequence[Example], longest: int
) -> tuple[torch.Tensor, torch.Tensor] | tuple[()]:
    likely = [example.likely for example in examples]
    found = [one for one in likely if one is not None]
    if len(found) < len(likely):
        return ()
    num_top = min(one.token_ids.shape[1] for one in found)
    top_ids = torch.zeros(len(found), longest, num_top, dtype=torch.long)
    top_probs = torch.zeros(len(found), longest, num_top)
    for row, (example, one) in enumerate(zip(examples, found, strict=True)):
        end = example.num_tokens
        here = slice(end - len(one.token_ids), end)
        top_ids[row, here] = torch.from_numpy(one.token_ids[:, :num_top].astype(np.int64))
        shares = torch.from_numpy(one.probabilities[:, :num_top].astype(np.float32))
        top_probs[row, here] = shares / PROBABILITY_UNITS
    return top_ids, top_probs


class ExampleFiles:
    """The examples in JSONL files, which may grow while they are read."""

    def __init__(self, paths: Sequence[Path], max_tokens: int) -> None:
        """Skip examples of more than max_tokens tokens, and those without an answer.

        paths: files, or folders with files of `diffuspec drafter answers`.
        """
        self._paths = tuple(paths)
        self._ends: dict[Path, int] = {}  # bytes read of each file
        self._num_lines = 0
        self._max_tokens = max_tokens
        self.training: list[Example] = []
        self.held_out: list[Example] = []

    def read_new(self) -> None:
        """Read the lines completed since the last call. Raises ConfigError."""
        for path in self._files():
            start = self._ends.get(path, 0)
            if path.stat().st_size == start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                for line in file:
                    if line.endswith(b"\n"):
                        self._add(path, line)
                        start += len(line)
            self._ends[path] = start

    def _files(self) -> Iterator[Path]:
        for path in self._paths:
            if not path.exists():
                raise ConfigError(f"there is no file {path}")
            found = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
            if not found:
                raise ConfigError(f"{path} has no files {PATTERN}")
            yield from found

    def read_enough(self) -> None:
        """Read the files. Raises ConfigError if there is no held-out answer."""
        self.read_new()
        if not self.held_out:
            raise ConfigError(
                f"{', '.join(map(str, self._paths))}: {len(self.training)} answers are too few: "
                "none of them is held out"
            )

    def typical_batch(self) -> Batch:
        """Return a few held-out examples of medium length, to measure how a model computes."""
        few = sorted(self.held_out, key=lambda example: example.num_tokens)
        middle = len(few) // 2
        return pad(few[middle : middle + NUM_TYPICAL_EXAMPLES])

    def batches(
        self, seed: int, chunk: int, tokens_per_batch: int, device: torch.device
    ) -> Iterator[Batch]:
        """Read new lines, and yield the padded batches of a chunk; see `chunk_of_batches`.

        A thread pads later batches while one is being trained on.
        """
        self.read_new()
        chosen = chunk_of_batches(self.training, seed, chunk, tokens_per_batch)
        with ThreadPoolExecutor(1) as pool:
            yield from (batch.to(device) for batch in pool.map(pad, chosen))

    def _add(self, path: Path, line: bytes) -> None:
        self._num_lines += 1
        example = parse_example(path, line)
        if any(example.is_answer) and example.num_tokens <= self._max_tokens:
            is_held_out = self._num_lines % HELD_OUT_EVERY == 0
            (self.held_out if is_held_out else self.training).append(example)


def parse_example(path: Path, line: bytes | str) -> Example:
    """Read one line of a file of answers. Raises ConfigError."""
    try:
        record = json.loads(line)
        prompt, answer = record["prompt"], record["answer"]
        token_ids = [*map(int, prompt), *map(int, answer)]
        marks = [False] * len(prompt) + [True] * len(answer)
        return Example(token_ids, marks, _likely(record, len(answer)))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: a line must be an object with prompt and answer, lists of token ids, got "
            f"{line!r:.80}"
        ) from error


def _likely(record: dict[str, Any], num_tokens: int) -> Likely | None:
    if "top_ids" not in record or num_tokens == 0:
        return None
    token_ids = np.array(record["top_ids"], np.int32).reshape(num_tokens, -1)
    shares = np.array(record["top_probs"], np.uint8).reshape(num_tokens, -1)
    return Likely(token_ids, shares)


def chunk_of_batches(
    examples: Sequence[Example], seed: int, chunk: int, tokens_per_batch: int
) -> Iterator[list[Example]]:
    """Yield about BATCHES_PER_CHUNK batches, each of examples of similar length.

    Successive chunks use all examples once in random order before using any of them again. A chunk
    depends only on the seed, its index and the examples, so that training resumes exactly.
    """
    mean = sum(example.num_tokens for example in examples) / len(examples)
    size = max(1, round(BATCHES_PER_CHUNK * tokens_per_batch / mean))
    turns = range(chunk * size // len(examples), ((chunk + 1) * size - 1) // len(examples) + 1)
    orders = {turn: order_of_turn(len(examples), f"{seed}/{turn}") for turn in turns}
    places = (divmod(place, len(examples)) for place in range(chunk * size, (chunk + 1) * size))
    chosen = [examples[orders[turn][index]] for turn, index in places]
    yield from batches_by_length(chosen, tokens_per_batch, random.Random(f"{seed}/{chunk}"))


@lru_cache(maxsize=2)
def order_of_turn(count: int, seed: str) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def batches_by_length(
    examples: Iterable[Example], tokens_per_batch: int, rng: random.Random
) -> list[list[Example]]:
    """Group examples of similar length into batches of at most tokens_per_batch, padded."""
    batches: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: example.num_tokens):
        if batches[-1] and (len(batches[-1]) + 1) * example.num_tokens > tokens_per_batch:
            batches.append([])
        batches[-1].append(example)
    rng.shuffle(batches)
    return batches
