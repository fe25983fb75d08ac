"""What the names of systems say."""

from pathlib import Path

import pytest

from diffuspec.bench.systems.naming import config_for, find_drafter, speculation_for
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams
from diffuspec.pairs import parse_config


def test_names_say_how_to_draft() -> None:
    defaults = SpeculationParams(max_nodes=48, drafter_weight="adaptive")
    assert speculation_for("plain", defaults).policy == "off"
    paper = speculation_for("paper", defaults)
    assert (paper.policy, paper.tree_shape, paper.drafter_weight) == ("paper", "path", 0.5)
    beams = speculation_for("cost_aware_beams", defaults)
    assert (beams.policy, beams.tree_shape, beams.max_nodes) == ("cost_aware", "beams", 48)
    fixed = speculation_for("fixed_12_best_first", defaults)
    assert (fixed.policy, fixed.num_draft_tokens) == ("fixed", 12)
    assert fixed.tree_shape == "best_first"


@pytest.mark.parametrize("name", ["", "falcon", "cost_aware", "fixed_path", "cost_aware_star"])
def test_unknown_names_are_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"systems must be among plain, .*got '{name}'"):
        speculation_for(name, SpeculationParams())


def test_a_kind_drafts_as_much_as_pays_or_all_that_it_drafts() -> None:
    defaults = SpeculationParams(max_nodes=48)
    assert speculation_for("pld", defaults).policy == "cost_aware"
    whole = speculation_for("token_recycling", defaults, whole_drafts=True)
    assert (whole.policy, whole.max_nodes) == ("fixed", 80)
    assert speculation_for("lookahead", defaults) == speculation_for("lookahead", defaults, True)
    assert speculation_for("plain", defaults, whole_drafts=True).policy == "off"


def test_a_kind_takes_its_section_or_its_defaults() -> None:
    config = parse_config(
        {
            "target": {"path": "t"},
            "drafter": {"kind": "samd"},
            "drafters": {"lookup": {"kind": "pld", "num_draft_tokens": 3}},
        }
    )
    assert find_drafter("plain", config) is None
    assert find_drafter("pld", config) == config.drafters["lookup"]
    assert config_for("pld", config).drafters == {}
    other = find_drafter("token_recycling", config)
    assert other is not None and other.kind == "token_recycling"
    assert find_drafter("cost_aware_path", config) == config.drafter


@pytest.mark.parametrize(
    ("name", "expected"),
    [("diffuspec", (False, 0.0)), ("diffuspec_retrieval", (True, 0.0)),
     ("diffuspec_cache", (False, 0.7))],
)  # fmt: skip
def test_a_variant_is_a_kind_with_another_search(name: str, expected: tuple[bool, float]) -> None:
    config = parse_config({"target": {"path": "t"}, "drafter": {"path": "d"}})
    own = config_for(name, config)
    assert own.drafter == config.drafter
    assert (own.search.retrieval, own.search.cache_weight) == expected
    whole = speculation_for(name, SpeculationParams(), whole_drafts=True)
    assert (whole.num_draft_tokens, whole.max_nodes) == (20, 64)


def test_a_kind_with_a_model_needs_its_section() -> None:
    config = parse_config({"target": {"path": Path("t")}})
    with pytest.raises(ConfigError, match="diffuspec needs a drafter of that kind"):
        find_drafter("diffuspec", config)
    with pytest.raises(ConfigError, match="paper needs --drafter"):
        find_drafter("paper", config)


def test_dflash_as_its_authors_draft_is_the_likeliest_token_of_each_position() -> None:
    made = speculation_for("dflash_block", SpeculationParams(), whole_drafts=True)
    assert (made.policy, made.tree_shape, made.drafter_weight) == ("fixed", "path", 1.0)
    assert speculation_for("dflash", SpeculationParams()).tree_shape == "best_first"
