"""A trial of a format before its request starts: random answers, which show its cost.

Some short formats exceed their limits within a few tokens of any answer. The trial finds these in a
few milliseconds, in a thread that no other request waits for.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np
from llguidance import LLMatcher

_NUM_ANSWERS = 2
_NUM_TOKENS = 24  # tokens in each answer


def survives_trial(matcher: LLMatcher, eos_token_ids: Collection[int]) -> bool:
    """Return whether random answers stay within a format's limits. Uses up those of the matcher."""
    rng = random.Random(0)
    return all(_go_on(matcher, eos_token_ids, rng) for _ in range(_NUM_ANSWERS))


def _go_on(matcher: LLMatcher, eos_token_ids: Collection[int], rng: random.Random) -> bool:
    matcher.reset()
    for _ in range(_NUM_TOKENS):
        token_id = _draw(np.frombuffer(matcher.compute_bitmask(), np.uint8), rng)
        if matcher.is_error():
            return False
        if token_id is None or token_id in eos_token_ids:
            break
        if not matcher.consume_token(token_id):
            return False
    return True


def _draw(mask: np.ndarray[tuple[int], np.dtype[np.uint8]], rng: random.Random) -> int | None:
    """Return one of the tokens in a mask; None if it has none."""
    places = np.flatnonzero(mask)
    if not len(places):
        return None
    place = int(places[rng.randrange(len(places))])
    return 8 * place + rng.choice([bit for bit in range(8) if mask[place] >> bit & 1])
