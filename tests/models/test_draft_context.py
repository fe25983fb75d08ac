"""The context of a drafter: the beginning of the prompt, its end, and the answer."""

from __future__ import annotations

import numpy as np
import pytest

from diffuspec.models.draft_context import draft_context, max_context_tokens

PREFIX = np.arange(1000, dtype=np.int32)


def context(length: int, num_prompt_tokens: int, size: int | None = 40) -> list[int]:
    return draft_context(PREFIX[:length], num_prompt_tokens, size).tolist()


@pytest.mark.parametrize(
    ("length", "num_prompt_tokens", "size"), [(1000, 900, None), (40, 40, 40), (160, 7, 40)]
)
def test_a_short_prefix_is_read_whole(
    length: int, num_prompt_tokens: int, size: int | None
) -> None:
    assert context(length, num_prompt_tokens, size) == [*range(length)]


def test_a_quarter_of_a_long_prompt_s_context_is_its_beginning() -> None:
    assert context(500, 500) == [*range(10), *range(470, 500)]


def test_an_answer_follows_its_prompt() -> None:
    assert context(501, 500) == [*range(10), *range(470, 501)]
    assert context(620, 500) == [*range(10), *range(470, 620)]


def test_old_tokens_are_dropped_in_large_steps() -> None:
    assert context(621, 500) == [*range(10), *range(590, 621)]
    assert context(740, 500) == [*range(10), *range(590, 740)]
    assert context(741, 500) == [*range(10), *range(710, 741)]


def test_an_unknown_prompt_is_read_in_large_steps() -> None:
    assert context(160, 0) == [*range(160)]
    assert context(161, 0) == [*range(10), *range(130, 161)]


def test_no_context_exceeds_its_maximum() -> None:
    most = max(len(context(length, 300)) for length in range(300, 1000))
    assert most == max_context_tokens(1000, 40) == 160
    assert max_context_tokens(1000, None) == 1000
    assert max_context_tokens(100, 40) == 100
