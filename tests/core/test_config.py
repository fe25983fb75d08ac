from pathlib import Path

import pytest

from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DiffuSpecConfig, PromptLookupConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams
from diffuspec.pairs import load_config, parse_config

TARGET = {"path": "model"}
PLD = {"kind": "pld"}


def test_the_defaults_are_the_papers_constants():
    config = parse_config({"target": TARGET, "drafter": {"path": "drafter"}})
    drafter, length = config.drafter, config.draft_length
    assert isinstance(drafter, DiffuSpecConfig), "the kind unless another is named"
    assert (drafter.candidate_mass, drafter.max_candidates) == (0.8, 15)
    assert (drafter.num_refinement_steps, config.search.beam_width) == (1, 3)
    assert (length.min_draft_tokens, length.max_draft_tokens) == (20, 30)
    assert (length.growth, length.smoothing) == (10, 0.5)
    assert config.speculation.drafter_weight == 0.5


def test_the_default_speculation_is_that_of_a_request():
    config = parse_config({"target": TARGET})
    assert config.speculation == SpeculationParams()


WRONG: list[tuple[dict[str, object], str]] = [
    ({"target": "model"}, "target must be a section with keys of its own, got 'model'"),
    ({"target": {}}, "target.path is missing"),
    ({"target": TARGET | {"device": "tpu"}}, "target.device must be 'auto', 'cpu' or 'cuda', got"),
    ({"target": TARGET | {"dtype": "int4"}}, "target.dtype must be .*got 'int4'"),
    ({"target": {"path": 3}}, "target.path must be a path, got 3"),
    ({"target": TARGET | {"max_sequences": 0}}, "target.max_sequences must be 1 or more, got 0"),
    ({"target": TARGET | {"max_model_len": 1}}, "target.max_model_len must be 2 or more, got 1"),
    ({"target": TARGET | {"max_tree_nodes": 257}}, "max_tree_nodes must be at most 256, got 257"),
    ({"drafter": {}}, "drafter.path is missing"),
    (
        {"drafter": {"path": "d", "candidate_mass": 0}},
        "drafter.candidate_mass must be above 0, got 0",
    ),
    (
        {"drafter": {"path": "d", "candidate_mass": float("nan")}},
        "drafter.candidate_mass must be .*got nan",
    ),
    (
        {"drafter": {"path": "d", "num_refinement_steps": 0}},
        "drafter.num_refinement_steps must be 1 or more, got 0",
    ),
    ({"drafter": {"kind": "oracle", "path": "d"}}, "drafter.kind must be 'diffuspec', "),
    ({"drafters": {"a": PLD}}, "drafters needs a section drafter, for requests that choose none"),
    ({"drafter": PLD, "drafters": {"pld": PLD}}, "drafters.pld: the section drafter has this name"),
    (
        {"drafter": PLD, "drafters": {"A b": PLD}},
        "drafters: a name must be of at most 64 lower-case letters, digits.*, got 'A b'",
    ),
    (
        {"drafter": PLD, "speculation": {"drafter": "samd"}},
        "speculation.drafter must be one of pld, got 'samd'",
    ),
    ({"speculation": {"drafter": "auto"}}, "speculation.drafter must be one of none, got 'auto'"),
    (
        {"drafter": {"kind": "pld", "max_ngram_tokens": 0}},
        "drafter.max_ngram_tokens must be 1 or more, got 0",
    ),
    ({"search": {"beam_width": 0}}, "search.beam_width must be .*got 0"),
    ({"search": {"cache_weight": 0.5}}, "cache_weight needs ngram or causal_lm to be mixed with"),
    ({"search": {"ngram": "n", "cache_weight": 1}}, "cache_weight must be less than 1, got 1"),
    ({"search": {"ngram": 3}}, "search.ngram must be a path, got 3"),
    (
        {"draft_length": {"max_draft_tokens": 10}},
        "draft_length: min_draft_tokens 20 is above max_draft_tokens 10",
    ),
    (
        {"draft_length": {"max_draft_tokens": 129}},
        "draft_length.max_draft_tokens must be at most 128, got 129",
    ),
    ({"draft_length": {"smoothing": 1.5}}, "smoothing must be .*1, got 1.5"),
    (
        {"speculation": {"policy": "best"}},
        "speculation.policy must be 'paper', 'cost_aware', 'fixed' or 'off', got 'best'",
    ),
    ({"speculation": {"tree_shape": "oak"}}, "tree_shape must .*got 'oak'"),
    (
        {"speculation": {"drafter_weight": 1.5}},
        "speculation.drafter_weight must be at most 1, or 'adaptive', got 1.5",
    ),
    (
        {"speculation": {"drafter_weight": "auto"}},
        "speculation.drafter_weight must be a number, or 'adaptive', got 'auto'",
    ),
    (
        {"speculation": {"max_nodes": 65}},
        "speculation.max_nodes 65 is above target.max_tree_nodes 64",
    ),
    ({"coordinator": {"max_waiting": -1}}, "max_waiting must be 0 or more, got"),
    ({"coordinator": {"max_draft_seconds": 0}}, "must be above 0, got 0"),
    (
        {"coordinator": {"prefill_chunk_tokens": 0}},
        "coordinator.prefill_chunk_tokens must be 1 or more, got 0",
    ),
    (
        {"coordinator": {"prefill_chunk_tokens": 2**32}},
        "coordinator.prefill_chunk_tokens must be at most 2147483647, got 4294967296",
    ),
]


@pytest.mark.parametrize(("data", "message"), WRONG, ids=[message for _, message in WRONG])
def test_an_error_names_the_key_the_right_values_and_the_value(data, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"target": TARGET} | data)


def test_a_configuration_has_a_target():
    with pytest.raises(ConfigError, match="target is missing"):
        parse_config({})


def test_a_drafter_is_of_the_kind_that_is_named():
    config = parse_config({"target": TARGET, "drafter": PLD})
    assert config.drafter == PromptLookupConfig(max_ngram_tokens=3, num_draft_tokens=10)
    assert parse_config(config.model_dump()) == config


def test_drafters_are_named_by_their_keys_and_the_default_one_by_its_kind():
    drafters = {"answers": {"kind": "samd"}, "other": {"path": "d"}}
    config = parse_config({"target": TARGET, "drafter": PLD, "drafters": drafters})
    kinds = {name: section.kind for name, section in config.named_drafters.items()}
    assert list(kinds.items()) == [("pld", "pld"), ("answers", "samd"), ("other", "diffuspec")]
    assert parse_config({"target": TARGET}).named_drafters == {}


def test_a_yaml_file_is_read(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("target: {path: a/b, dtype: float32}\nspeculation: {drafter_weight: adaptive}")
    config = load_config(file)
    assert config.target.path == Path("a/b") and config.target.dtype == "float32"
    assert config.speculation.drafter_weight == "adaptive"


@pytest.mark.parametrize("policy", ["off", "'off'", "Off"])
def test_a_policy_may_be_off_without_quotes(tmp_path, policy):
    file = tmp_path / "config.yaml"
    file.write_text(f"target: {{path: m}}\nspeculation: {{policy: {policy}, max_nodes: 8}}")
    speculation = load_config(file).speculation
    assert (speculation.policy, speculation.max_nodes) == ("off", 8)


def test_a_configuration_comes_through_json_unchanged():
    config = parse_config({"target": TARGET, "speculation": {"policy": "off"}})
    assert EngineConfig.model_validate_json(config.model_dump_json()) == config


def test_a_configuration_cannot_be_changed():
    config = parse_config({"target": TARGET})
    with pytest.raises(ValueError, match="frozen"):
        config.target.device = "cpu"  # type: ignore[misc]
    assert isinstance(config, EngineConfig)


def test_a_section_of_the_service_is_left_to_it(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("target: {path: m}\nserve: {playground: false}")
    assert load_config(file) == parse_config({"target": {"path": "m"}})
