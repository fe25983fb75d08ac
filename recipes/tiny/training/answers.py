"""The target's own greedy answers to corpus questions, to align the drafter with it.

Where the target is wrong, a drafter trained only on the corpus would predict the right text instead
of the target's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from diffuspec.core.params import SamplingParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs.factory.examples import Example, parse_example
from recipes.tiny.corpus.conversations import Conversation
from recipes.tiny.corpus.data import FAMILY_WEIGHTS, draw_conversation
from recipes.tiny.corpus.encoder import Encoder

MAX_ANSWER_TOKENS = 160
CODE_SHARE = 0.15  # target and corpus differ most in code
_BATCH = 64


def write_answers(engine: Engine, path: Path, num_conversations: int, seed: int) -> None:
    """Answer questions of the training set, and write one JSON line for each."""
    encoder = Encoder(engine.tokenizer)
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(0, num_conversations, _BATCH):
            drawn = [_draw(rng) for _ in range(_BATCH)]
            for prompt, answer in _answer(engine, encoder, drawn):
                file.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
            file.flush()


def read_answers(path: Path) -> list[Example]:
    """Return the answers in a file as training examples."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [parse_example(path, line) for line in lines]


def _draw(rng: random.Random) -> Conversation:
    families = [family for family in FAMILY_WEIGHTS if family != "code"]
    weights = [FAMILY_WEIGHTS[family] for family in families]
    is_code = rng.random() < CODE_SHARE
    family = "code" if is_code else rng.choices(families, weights)[0]
    return draw_conversation(family, rng, rng.random())


def _answer(
    engine: Engine, encoder: Encoder, drawn: list[Conversation]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield prompt and answer for the last turn of each conversation, given earlier answers."""
    prompts = []
    for source in drawn:
        example = encoder.conversation(source)
        end = len(example.token_ids)
        while example.is_answer[end - 1]:
            end -= 1
        prompts.append(example.token_ids[:end])
    sampling = SamplingParams(max_tokens=MAX_ANSWER_TOKENS)
    for prompt, completion in zip(prompts, engine.generate(prompts, sampling), strict=True):
        yield prompt, list(completion.token_ids)
