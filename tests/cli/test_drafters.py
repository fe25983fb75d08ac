"""Which drafters of a file a command loads."""

import pytest

from diffuspec.cli.options import EngineOptions, engine_config
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import parse_config

FILE = parse_config(
    {"target": {"path": "t"}, "drafter": {"kind": "pld"}, "drafters": {"answers": {"kind": "samd"}}}
)


@pytest.mark.parametrize(
    ("kind", "keeps_drafters", "names", "chosen"),
    [
        (None, False, ["pld"], None),
        (None, True, ["pld", "answers"], None),
        ("answers", True, ["samd"], None),
        ("auto", False, ["pld", "answers"], "auto"),
    ],
)
def test_the_drafters_are_those_of_the_file_or_the_one_that_is_chosen(
    kind: str | None, keeps_drafters: bool, names: list[str], chosen: str | None
) -> None:
    config = engine_config(
        EngineOptions(drafter_kind=kind), file=FILE, keeps_drafters=keeps_drafters
    )
    assert [*config.named_drafters] == names and config.speculation.drafter == chosen


def test_without_drafters_there_is_none_to_choose() -> None:
    plain = parse_config({"target": {"path": "t"}})
    with pytest.raises(ConfigError, match=r"speculation\.drafter must be one of none, got 'auto'"):
        engine_config(EngineOptions(drafter_kind="auto"), file=plain)
