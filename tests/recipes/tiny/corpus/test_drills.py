"""Drills."""

import random

from recipes.tiny.corpus import drills


def test_results_of_sums_are_right(encoder):
    example = drills.sums(encoder, random.Random(3))
    said = [
        i for i, is_answer in zip(example.token_ids, example.is_answer, strict=True) if is_answer
    ]
    lines = encoder.text(said[:-1]).splitlines()
    assert len(lines) == drills.NUM_SUMS
    for line in lines:
        left, right = line.split(" = ")
        a, sign, b = left.split()
        results = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}
        assert int(right) == results[sign]
