"""Training examples: conversations as token ids, in batches of like length.

A chunk of batches is a function of (seed, chunk index, progress), so that training resumes exactly.
Besides the corpus there is one artificial family: a run of shuffled tokens to be repeated. It keeps
up the art of copying, which the families that quote their prompt depend on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from diffuspec.tiny.corpus import Conversation, conversation, is_held_out

FAMILY_WEIGHTS = {
    "mt_bench": 0.17,
    "translation": 0.21,
    "summarization": 0.15,
    "qa": 0.13,
    "math_reasoning": 0.18,
    "rag": 0.14,
    "code": 0.02,
}
MAX_EXAMPLE_TOKENS = 512
BATCHES_PER_CHUNK = 8
COPY_SHARE = 0.03
MIN_RUN, MAX_RUN = 6, 24
ANSWERED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation. is_answer marks the tokens that the model must produce."""

    token_ids: list[int]
    is_answer: list[bool]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class Encoder:
    """Turns conversations into examples."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._user = self._ids("<|im_start|>user\n")
        self._assistant = self._ids("<|im_end|>\n<|im_start|>assistant\n")
        self._end = self._ids("<|im_end|>")
        self._newline = self._ids("\n")
        self._last_special_id = max(tokenizer.all_special_ids)

    def conversation(self, source: Conversation) -> Example:
        turns = [self._ids(text) for text in source.turns]
        return self.turns(turns, [self._ids(text) for text in source.answers])

    def turns(self, turns: Sequence[list[int]], answers: Sequence[list[int]]) -> Example:
        token_ids: list[int] = []
        is_answer: list[bool] = []
        for turn, answer in zip(turns, answers, strict=True):
            asked = [*self._user, *turn, *self._assistant]
            if token_ids:
                asked = [*self._newline, *asked]
            said = [*answer, *self._end]
            token_ids += asked + said
            is_answer += [False] * len(asked) + [True] * len(said)
        return Example(token_ids, is_answer)

    def copy(self, rng: random.Random, source: Example, repeats: int = 1) -> Example:
        """A run of different tokens of the source in random order, to be said so many times."""
        plain = [i for i in sorted(set(source.token_ids)) if i > self._last_special_id]
        run = rng.sample(plain, min(len(plain), rng.randint(MIN_RUN, MAX_RUN)))
        return self.turns([run], [run * repeats])

    def copied_run(self, example: Example) -> range:
        """Where the run stands in the question of an example made by `copy`."""
        end = example.is_answer.index(True) - len(self._assistant)
        return range(len(self._user), end)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def training_batches(
    encoder: Encoder,
    seed: int,
    chunk: int,
    progress: float,
    tokens_per_batch: int,
    answered: Sequence[Example] = (),
) -> Iterator[list[Example]]:
    """Yield one chunk of batches, each of examples of like length.

    progress in [0, 1] steers the curriculum: passages and problems grow during the first 40 %.
    When there are answers of the target's own, every other example is one of them.
    """
    rng = random.Random(f"{seed}/{chunk}")
    longest = min(1.0, 0.15 + progress / 0.4)
    examples: list[Example] = []
    num_tokens = 0
    while num_tokens < BATCHES_PER_CHUNK * tokens_per_batch:
        if answered and rng.random() < ANSWERED_SHARE:
            example = rng.choice(answered)
        else:
            example = _draw(encoder, rng, longest)
        if example.num_tokens <= MAX_EXAMPLE_TOKENS:
            examples.append(example)
            num_tokens += example.num_tokens
    batches = _cut(sorted(examples, key=lambda example: example.num_tokens), tokens_per_batch)
    rng.shuffle(batches)
    yield from batches


def draw_conversation(family: str, rng: random.Random, size: float) -> Conversation:
    """Draw from training's side of the corpus."""
    while is_held_out(drawn := conversation(family, rng, size)):
        pass
    return drawn


def _draw(encoder: Encoder, rng: random.Random, longest: float) -> Example:
    family = rng.choices(list(FAMILY_WEIGHTS), weights=list(FAMILY_WEIGHTS.values()))[0]
    example = encoder.conversation(draw_conversation(family, rng, longest * rng.random()))
    return encoder.copy(rng, example) if rng.random() < COPY_SHARE else example


def _cut(examples: list[Example], tokens_per_batch: int) -> list[list[Example]]:
    batches: list[list[Example]] = [[]]
    for example in examples:  # ascending: the newest one is the longest of its batch
        if batches[-1] and (len(batches[-1]) + 1) * example.num_tokens > tokens_per_batch:
            batches.append([])
        batches[-1].append(example)
    return batches
