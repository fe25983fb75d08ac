"""What the comparison of vLLM's answers counts as equal, and as of one distribution."""

import random

import pytest

from benchmarks.studies.vllm_lossless import (
    Asked,
    compare,
    first_difference,
    greedy_table,
    sampled_table,
)


def draw(number: int, weights: list[float], seed: int) -> list[int]:
    return random.Random(seed).choices(range(len(weights)), weights, k=number)


def test_samples_of_one_distribution_are_alike_and_of_two_are_not():
    weights = [0.5, 0.3, 0.1, 0.05, 0.03, 0.02]
    ps = [compare(draw(2000, weights, n), draw(3000, weights, n + 99)).p_value for n in range(40)]
    assert min(ps) > 1e-4 and 0.3 < sum(ps) / len(ps) < 0.7
    others = [0.45, 0.35, *weights[2:]]
    assert compare(draw(20_000, weights, 1), draw(20_000, others, 2)).p_value < 1e-6


def test_chi_squared_and_its_p_are_those_of_the_textbook():
    found = compare([0] * 60 + [1] * 40, [0] * 50 + [1] * 50)
    assert (found.chi_squared, found.num_free) == (pytest.approx(2.0202, abs=1e-4), 1)
    assert found.p_value == pytest.approx(0.1552, abs=1e-4)


def test_rare_categories_are_counted_as_one():
    found = compare([*range(100), *[7] * 50], [*range(100, 200), *[7] * 50])
    assert found.num_free == 1


def test_the_first_token_that_differs_is_found_at_the_end_of_an_answer_too():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == first_difference([1, 2], [1, 2, 3]) == 2


def test_tables_tell_other_answers_and_other_distributions():
    plain, drafted = Asked([[1, 2], [3, 4]]), Asked([[1, 2], [3, 5]], 7, 3)
    cells = {row[0]: row[1] for row in greedy_table(plain, drafted, 2).cells}
    assert cells["other answers"] == "1" and cells["drafted tokens"] == "7"
    one = Asked([[number % 4, 1] for number in range(400)])
    other = Asked([[number % 4, number // 200] for number in range(400)])
    ps = {row[0]: float(row[-1]) for row in sampled_table(one, other, 2).cells}
    assert ps["token 1"] > 0.9 and ps["token 2"] < 0.001 and ps["tokens 1 and 2"] < 0.001
