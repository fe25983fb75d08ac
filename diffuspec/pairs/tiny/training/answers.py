"""The target's own greedy answers to corpus questions, for aligning the drafter.

Where the target errs or knows a text only roughly, a drafter trained on the corpus predicts what
should come; what counts is what the target will say.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from diffuspec.core.params import SamplingParams
from diffuspec.engine import Engine
from diffuspec.pairs.tiny.corpus.conversations import Conversation
from diffuspec.pairs.tiny.corpus.data import FAMILY_WEIGHTS, draw_conversation
from diffuspec.pairs.tiny.corpus.encoder import Encoder, Example

MAX_ANSWER_TOKENS = 160
CODE_SHARE = 0.15  # where target and corpus differ most
_BATCH = 64


def write_answers(engine: Engine, path: Path, num_conversations: int, seed: int) -> None:
    """Answer questions from training's side of the corpus; one JSON line each."""
    encoder = Encoder(engine.tokenizer)
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(0, num_conversations, _BATCH):
            drawn = [_draw(rng) for _ in range(_BATCH)]
            for prompt, answer in _answer(engine, encoder, drawn):
                file.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
            file.flush()


def read_answers(path: Path) -> list[Example]:
    """Return the answers as training examples."""
    examples = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        prompt, answer = record["prompt"], record["answer"]
        marks = [False] * len(prompt) + [True] * len(answer)
        examples.append(Example(prompt + answer, marks))
    return examples


def _draw(rng: random.Random) -> Conversation:
    families = [family for family in FAMILY_WEIGHTS if family != "code"]
    weights = [FAMILY_WEIGHTS[family] for family in families]
    is_code = rng.random() < CODE_SHARE
    family = "code" if is_code else rng.choices(families, weights)[0]
    return draw_conversation(family, rng, rng.random())


def _answer(
    engine: Engine, encoder: Encoder, drawn: list[Conversation]
) -> Iterator[tuple[list[int], list[int]]]:
    """Answer each conversation's last turn, the earlier answers being the corpus's."""
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
