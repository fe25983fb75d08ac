"""The study of policies: what it compares, and what it counts."""

from dataclasses import replace

import uvloop

from diffuspec.bench.questions import load_questions
from diffuspec.bench.studies.policies import (
    DEFAULT,
    OFF,
    Setting,
    compare_policies,
    encode_questions,
    make_config,
    make_policies,
    num_different,
    policy_table,
)
from diffuspec.engine import Engine
from diffuspec.pairs import find_pair


def test_every_policy_gives_the_same_tokens_in_every_setting_and_is_in_the_table() -> None:
    pair = find_pair("tiny", "--pair")
    settings = [Setting(1, 0.0), Setting(2, 1.0)]
    with Engine.from_config(make_config(pair, 2)) as engine:
        prompts = encode_questions(engine, load_questions(pair.questions)[:2], 8)
        found = uvloop.run(
            compare_policies(
                engine, make_policies([3]), prompts, settings, max_tokens=8, num_repeats=1
            )
        )
    assert list(found) == settings
    for turns in found.values():
        assert list(turns) == [OFF, DEFAULT, "fixed 3"]
        assert turns[OFF][0].acceptance_length == 1.0
        assert turns["fixed 3"][0].acceptance_length > 1.0
        assert all(num_different(own, turns[OFF]) == 0 for own in turns.values())
    assert len(policy_table(found).cells) == 6


def test_an_answer_with_other_tokens_is_counted() -> None:
    pair = find_pair("tiny", "--pair")
    with Engine.from_config(make_config(pair, 1)) as engine:
        prompts = encode_questions(engine, load_questions(pair.questions)[:1], 4)
        setting = Setting(1, 0.0)
        policies = {OFF: make_policies([])[OFF]}
        run = compare_policies(engine, policies, prompts, [setting], max_tokens=4, num_repeats=1)
        (turn,) = uvloop.run(run)[setting][OFF]
    (right,) = turn.completions
    wrong = replace(turn, completions=(replace(right, token_ids=right.token_ids[:-1]),))
    assert num_different([turn, wrong], [turn]) == 1
