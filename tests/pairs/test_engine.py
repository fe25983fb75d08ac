"""`diffuspec.Engine`: opened by the names of models, and its errors for wrong arguments."""

import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest

from diffuspec import Engine, SamplingParams
from diffuspec.core.errors import ConfigError, InvalidRequestError
from diffuspec.pairs.tiny import DRAFTER, TARGET, tiny_config

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
SHORT = SamplingParams(max_tokens=8)


def test_the_help_begins_with_an_example_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = (inspect.getdoc(Engine) or "").splitlines()[2:]
    example = textwrap.dedent("\n".join(lines[: lines.index("", 2 + lines.index(""))]))
    assert len([line for line in example.splitlines() if line]) == 5
    exec(example, {})
    assert "Paris" in capsys.readouterr().out


def test_a_target_a_drafter_and_a_pair_give_the_same_answer() -> None:
    with Engine(pair="tiny", max_sequences=1) as engine:
        assert engine.config.drafter is not None and engine.config.target.max_sequences == 1
        answer = engine.chat(CHAT, SHORT)
    for drafter in (str(DRAFTER), "pld", {"kind": "samd"}, None):
        with Engine(target=TARGET, drafter=drafter, max_sequences=1) as engine:
            assert engine.chat(CHAT, SHORT).token_ids == answer.token_ids
            assert (engine.config.drafter is None) == (drafter is None)
    with Engine.from_config(tiny_config()) as engine:
        assert engine.generate([CHAT], SHORT)[0].token_ids == answer.token_ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": TARGET}, "no argument model: did you mean target"),
        ({"max_num_seqs": 4}, "no argument max_num_seqs: did you mean max_sequences"),
        ({"tensor_parallel_size": 4}, "no argument tensor_parallel_size: `diffuspec ray serve"),
        ({"zzz": 4}, "no argument zzz: it has target, drafter, pair"),
        ({"temperature": 0}, "no argument temperature: give it with the prompts, engine.generate"),
        ({"pair": "small"}, "pair must be tiny or smollm2, got 'small'"),
        ({"pair": "tiny", "target": TARGET}, "pair and target exclude each other"),
        ({"target": tiny_config()}, "opened by Engine.from_config"),
        ({"target": 3}, "target must be the path of a model, got int"),
        ({"target": TARGET, "drafter": "medusa"}, "needs its model: drafter={'kind': 'medusa'"),
        ({"target": TARGET, "dtype": "fp8"}, "target.dtype must be"),
    ],
)
def test_wrong_arguments_say_what_is_right(arguments, message):
    with pytest.raises(ConfigError) as error:
        Engine(**arguments)
    assert message in str(error.value)


def test_wrong_chats_and_parameters_say_what_is_right():
    with Engine(target=TARGET, max_sequences=1) as engine:
        wrong: list[tuple[Any, str]] = [
            ("Hello", "messages must be a list such as"),
            ([CHAT, CHAT], r"answered by generate\(\[chat, chat\]\)"),
            ([], "messages must be those of one chat"),
            ([{"role": "usr", "content": "Hi"}], "role must be one of .*user.*, got 'usr'"),
        ]
        for messages, message in wrong:
            with pytest.raises(InvalidRequestError, match=message):
                engine.chat(messages)
        sampling: Any = {"max_tokens": 4}
        with pytest.raises(InvalidRequestError, match=r"SamplingParams\(max_tokens=64\)"):
            engine.generate(["Hi"], sampling)


def test_a_missing_model_is_named() -> None:
    with pytest.raises(Exception, match="nowhere does not exist"):
        Engine(target=Path("nowhere"))
