from diffuspec.algorithm.draft_tree import chain
from diffuspec.algorithm.drafter_weight import DrafterWeight
from diffuspec.core.types import Draft, DraftTree, Verdict

START = DrafterWeight("adaptive").value


def judged(draft: Draft, *token_ids: int, times: int = 1) -> float:
    weight = DrafterWeight("adaptive")
    for _ in range(times):
        weight.observe(draft, Verdict(token_ids, ()))
    return weight.value


def drafted(tokens: list[int], of_drafter: tuple[int, ...], of_proxy: tuple[int, ...]) -> Draft:
    return Draft(chain(tokens), (0.0,) * len(tokens), len(tokens), of_drafter, of_proxy)


def test_the_weight_moves_towards_the_side_that_was_right():
    draft = drafted([5], (5,), (6,))
    assert judged(draft, 5) > START
    assert judged(draft, 6) < START


def test_the_weight_stays_if_both_or_neither_were_right():
    assert judged(drafted([5], (5,), (5,)), 5) == START
    assert judged(drafted([5], (5,), (6,)), 7) == START


def test_positions_after_the_first_wrong_token_are_not_judged():
    draft = drafted([5, 8], (5, 8), (5, 9))
    assert judged(draft, 5, 9) < START
    assert judged(draft, 4, 9) == START


def test_the_token_after_a_wrong_one_is_judged_by_the_best_path():
    tree = DraftTree((5, 6, 8), (-1, -1, 0))
    draft = Draft(tree, (0.0, 0.0, 0.0), 2, (6, 8), (5, 8))
    assert judged(draft, 6, 8) > START


def test_the_weight_stays_between_its_bounds():
    draft = drafted([5], (5,), (6,))
    assert 0.9 < judged(draft, 5, times=200) <= 0.95
    assert 0.25 <= judged(draft, 6, times=200) < 0.3


def test_the_weight_stays_without_a_proxy():
    assert judged(drafted([5], (5,), ()), 6) == START
