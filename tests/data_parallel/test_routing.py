"""A prompt goes to the engine that has the least to do before it has answered."""

from diffuspec.data_parallel.routing import TOKENS_PER_REQUEST, EngineRouter
from diffuspec.text.prompt_memory import BLOCK_TOKENS

BLOCKS = [b"%d" % number for number in range(2 * TOKENS_PER_REQUEST // BLOCK_TOKENS)]
NUM_TOKENS = len(BLOCKS) * BLOCK_TOKENS  # as much as two requests


def router() -> EngineRouter:
    return EngineRouter(["0", "1", "2"], num_slots=4)


def test_the_engine_with_the_fewest_requests_is_asked_first_and_then_the_next():
    loads = {"0": 2, "1": 0, "2": 1}
    assert router().rank(BLOCKS, NUM_TOKENS, loads) == ["1", "2", "0"]


def test_equally_busy_engines_are_asked_in_order():
    assert router().rank(BLOCKS, NUM_TOKENS, dict.fromkeys("012", 3)) == ["0", "1", "2"]


def test_an_engine_that_has_read_the_beginning_is_preferred_until_it_is_too_busy():
    chosen = router()
    chosen.remember(BLOCKS, "2")
    assert chosen.rank(BLOCKS, NUM_TOKENS, {"0": 0, "1": 0, "2": 1})[0] == "2"
    assert chosen.rank(BLOCKS, NUM_TOKENS, {"0": 0, "1": 0, "2": 2})[0] == "0"
    assert chosen.rank(BLOCKS, NUM_TOKENS, {"0": 0, "1": 0, "2": 3})[0] == "0"


def test_several_engines_may_have_read_the_same_beginning():
    chosen = router()
    chosen.remember(BLOCKS[:8], "1")
    chosen.remember(BLOCKS, "2")
    assert chosen.rank(BLOCKS, NUM_TOKENS, dict.fromkeys("012", 0)) == ["2", "1", "0"]


def test_an_engine_whose_cache_is_empty_is_like_the_others():
    chosen = router()
    chosen.remember(BLOCKS, "2")
    chosen.forget("2")
    assert chosen.rank(BLOCKS, NUM_TOKENS, dict.fromkeys("012", 0))[0] == "0"


def test_lost_engines_are_not_ranked():
    assert router().rank(BLOCKS, NUM_TOKENS, {"1": 5}) == ["1"]
    assert router().rank(BLOCKS, NUM_TOKENS, {}) == []
