"""Training examples in batches of similar length.

A chunk is a function of seed, chunk index and progress, so that training resumes exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from diffuspec.pairs.factory.examples import Example, batches_by_length
from recipes.tiny.corpus import drills
from recipes.tiny.corpus.conversations import Conversation, conversation, is_held_out
from recipes.tiny.corpus.encoder import Encoder

FAMILY_WEIGHTS = {
    "mt_bench": 0.24,
    "translation": 0.21,
    "summarization": 0.09,
    "qa": 0.13,
    "math_reasoning": 0.15,
    "rag": 0.16,
    "code": 0.02,
}
MAX_EXAMPLE_TOKENS = 512
BATCHES_PER_CHUNK = 16
ANSWERED_SHARE = 0.5


def training_batches(
    encoder: Encoder,
    seed: int,
    chunk: int,
    progress: float,
    tokens_per_batch: int,
    answered: Sequence[Example] = (),
) -> Iterator[list[Example]]:
    """Yield one chunk of batches, each with examples of similar length.

    progress: in [0, 1]; passages and problems grow until 0.4. If `answered` has examples, they make
    up ANSWERED_SHARE of the chunk.
    """
    rng = random.Random(f"{seed}/{chunk}")
    longest = min(1.0, 0.15 + progress / 0.4)
    examples: list[Example] = []
    num_tokens = 0
    while num_tokens < BATCHES_PER_CHUNK * tokens_per_batch:
        if answered and rng.random() < ANSWERED_SHARE:
            example = rng.choice(answered)
        else:
            example = draw_example(encoder, rng, longest)
            if rng.random() < drills.drill_share(progress):
                example = drills.drill(encoder, rng, example)
        if example.num_tokens <= MAX_EXAMPLE_TOKENS:
            examples.append(example)
            num_tokens += example.num_tokens
    yield from batches_by_length(examples, tokens_per_batch, rng)


def draw_conversation(family: str, rng: random.Random, size: float) -> Conversation:
    """Draw a conversation of a family from the training set."""
    while is_held_out(drawn := conversation(family, rng, size)):
        pass
    return drawn


def draw_example(encoder: Encoder, rng: random.Random, longest: float) -> Example:
    """Draw an example from the training set, families by weight."""
    family = rng.choices(list(FAMILY_WEIGHTS), weights=list(FAMILY_WEIGHTS.values()))[0]
    return encoder.conversation(draw_conversation(family, rng, longest * rng.random()))
