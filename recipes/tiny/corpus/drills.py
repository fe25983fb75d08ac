"""Drills: short artificial exercises for skills that the families need but rarely practise.

There are three: repeating a run of tokens; recalling the run that starts with a given token, as in
answers from passages; and sums, as in word problems. A few per batch are enough, most of them
early.
"""

from __future__ import annotations

import random

from diffuspec.pairs.factory.examples import Example
from recipes.tiny.corpus.encoder import Encoder

MIN_RUN, MAX_RUN = 6, 24
MAX_RUNS = 5
NUM_SUMS = 12
MAX_SUM, MAX_OPERAND = 40, 9
EARLY_SHARE, LATE_SHARE = 0.28, 0.08
SUMS_SHARE = 0.6  # share of sums among the drills


def drill_share(progress: float) -> float:
    """Return the share of drills among the examples, at progress in [0, 1]."""
    return LATE_SHARE + (EARLY_SHARE - LATE_SHARE) * max(0.0, 1 - 2 * progress)


def drill(encoder: Encoder, rng: random.Random, source: Example) -> Example:
    """Draw a drill over the tokens of `source`."""
    if rng.random() < SUMS_SHARE:
        return sums(encoder, rng)
    return rng.choice((repeat, recall))(encoder, rng, source)


def repeat(encoder: Encoder, rng: random.Random, source: Example) -> Example:
    """Draw a run of tokens to repeat; in half of the runs tokens occur several times."""
    plain = _plain_tokens(encoder, source)
    count = rng.randint(MIN_RUN, MAX_RUN)
    if rng.random() < 0.5:
        run = rng.sample(plain, min(len(plain), count))
    else:
        run = rng.choices(rng.sample(plain, min(len(plain), 8)), k=count)
    return encoder.turns([run], [run])


def recall(encoder: Encoder, rng: random.Random, source: Example) -> Example:
    """Draw runs of the same few tokens, each after its key, and a key to continue from."""
    plain = _plain_tokens(encoder, source)
    num_runs = rng.randint(2, MAX_RUNS)
    keys = rng.sample(plain, min(len(plain), num_runs))
    alphabet = rng.sample(plain, min(len(plain), rng.randint(3, 10)))
    runs = [[key, *rng.choices(alphabet, k=rng.randint(3, 10))] for key in keys]
    asked = rng.choice(runs)
    prompt = [token_id for run in runs for token_id in (*run, *encoder.newline)]
    return encoder.turns([[*prompt, asked[0]]], [asked])


def sums(encoder: Encoder, rng: random.Random) -> Example:
    """Draw sums to repeat with their results."""
    asked, worked = [], []
    for _ in range(NUM_SUMS):
        line, result = _sum(rng)
        asked.append(line)
        worked.append(f"{line} = {result}")
    return encoder.turns([encoder.ids("\n".join(asked))], [encoder.ids("\n".join(worked))])


def _sum(rng: random.Random) -> tuple[str, int]:
    operand = rng.randint(2, MAX_OPERAND)
    sign = rng.choice("++--x")
    if sign == "x":
        value, factor = rng.randint(3, 10), rng.randint(2, 4)
        return f"{value} x {factor}", value * factor
    if sign == "+":
        value = rng.randint(1, MAX_SUM - operand)
        return f"{value} + {operand}", value + operand
    value = rng.randint(operand + 1, MAX_SUM)
    return f"{value} - {operand}", value - operand


def _plain_tokens(encoder: Encoder, source: Example) -> list[int]:
    return [i for i in sorted(set(source.token_ids)) if i > encoder.last_special_id]
