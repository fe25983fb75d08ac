"""Conversations stay with the pipeline that has seen them, until it is too busy."""

import numpy as np
import pytest

from actors.service.routing import Router
from diffuspec.core.types import TokenIds
from diffuspec.text.prompt_memory import BLOCK_TOKENS, prompt_blocks

IDLE = {"a": 0, "b": 0, "c": 0}


def prompt(seed: int, num_tokens: int = 100) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.int32)


def test_every_ingress_chooses_the_same_pipeline_and_each_pipeline_has_a_share():
    blocks = [prompt_blocks(prompt(seed)) for seed in range(60)]
    choices = [Router().rank(one, IDLE)[0] for one in blocks]
    assert choices == [Router().rank(one, dict(reversed(IDLE.items())))[0] for one in blocks]
    assert all(choices.count(name) >= 10 for name in IDLE)


def test_a_lost_pipeline_changes_the_choice_for_its_own_prompts_alone():
    for seed in range(30):
        blocks = prompt_blocks(prompt(seed))
        first = Router().rank(blocks, IDLE)[0]
        rest = {name: 0 for name in IDLE if name != "b"}
        assert (Router().rank(blocks, rest)[0] == first) == (first != "b")


@pytest.mark.parametrize("name", IDLE)
def test_the_next_turn_goes_where_the_conversation_was(name):
    router, turn = Router(), prompt(7, 80)
    router.remember(prompt_blocks(turn), name)
    next_turn = np.concatenate([turn, prompt(8, 200)])
    assert router.rank(prompt_blocks(next_turn), IDLE)[0] == name


def test_a_longer_common_beginning_goes_before_a_shorter_one():
    router, system = Router(), prompt(7, BLOCK_TOKENS)
    mine, other = (np.concatenate([system, prompt(seed)]) for seed in (1, 2))
    router.remember(prompt_blocks(mine), "a")
    router.remember(prompt_blocks(other), "b")
    assert router.rank(prompt_blocks(mine), IDLE)[0] == "a"


def test_a_busy_pipeline_is_passed_over_and_the_rest_follow_by_load():
    router, blocks = Router(), prompt_blocks(prompt(7))
    router.remember(blocks, "a")
    assert router.rank(blocks, {"a": 1, "b": 1, "c": 1})[0] == "a"
    ranked = router.rank(blocks, {"a": 9, "b": 2, "c": 3})
    assert ranked[0] in ("b", "c") and set(ranked) == set(IDLE) and ranked[-1] == "a"


def test_one_pipeline_takes_everything():
    assert Router().rank(prompt_blocks(prompt(7)), {"a": 1000}) == ["a"]


def test_no_pipeline_is_no_choice():
    assert Router().rank(prompt_blocks(prompt(7)), {}) == []


def test_what_is_remembered_is_bounded():
    router = Router(max_remembered=4)
    old, new = prompt_blocks(prompt(1)), prompt_blocks(prompt(2))
    order = Router().rank(old, IDLE)
    router.remember(old, order[1])
    assert router.rank(old, IDLE)[0] == order[1]
    router.remember([*new, b"x"], "a")
    assert router.rank(old, IDLE)[0] == order[0]
