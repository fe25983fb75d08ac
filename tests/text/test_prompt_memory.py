"""Beginnings of prompts are told apart by blocks, and remembered up to a bound."""

from __future__ import annotations

import numpy as np

from diffuspec.core.types import TokenIds
from diffuspec.text.prompt_memory import (
    BLOCK_TOKENS,
    MAX_BLOCKS,
    PromptMemory,
    prompt_blocks,
)


def prompt(seed: int, num_tokens: int = 100) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.int32)


def test_blocks_are_those_of_every_longer_prompt_with_the_same_beginning():
    short, long = prompt(0, 3 * BLOCK_TOKENS + 5), prompt(0, 10 * BLOCK_TOKENS)
    assert prompt_blocks(long)[:3] == prompt_blocks(short) == prompt_blocks(long[:100])[:3]
    assert len(set(prompt_blocks(long))) == 10
    assert prompt_blocks(long)[0] != prompt_blocks(prompt(1))[0]


def test_blocks_of_different_salts_differ():
    one = prompt(0)
    found = [prompt_blocks(one, salt) for salt in (None, "x", "y")]
    assert len({block for blocks in found for block in blocks}) == 3 * (100 // BLOCK_TOKENS)
    assert prompt_blocks(one, "x") == found[1]


def test_blocks_are_bounded_and_a_short_prompt_has_one():
    assert len(prompt_blocks(prompt(0, 1_000_000))) == MAX_BLOCKS
    assert len(prompt_blocks(prompt(0, 3))) == len(prompt_blocks(prompt(0, 0))) == 1


def test_the_longest_beginning_counts():
    memory: PromptMemory[str] = PromptMemory(100)
    memory.remember([b"a", b"b"], "first")
    memory.remember([b"a"], "second")
    assert memory.longest([b"a", b"b", b"c"]) == (2, "first")
    assert memory.longest([b"a", b"x"]) == (1, "second")
    assert memory.longest([b"x"]) is None


def test_the_oldest_beginnings_are_forgotten():
    memory: PromptMemory[int] = PromptMemory(2)
    for number, block in enumerate([b"a", b"b", b"a", b"c"]):
        memory.remember([block], number)
    assert memory.longest([b"b"]) is None and memory.longest([b"a"]) == (1, 2)
