from pathlib import Path

import pytest

from diffuspec.core.config import EngineConfig, load_config, parse_config
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams

TARGET = {"path": "model"}


def test_the_defaults_are_the_papers_constants():
    config = parse_config({"target": TARGET, "drafter": {"path": "drafter"}})
    drafter, length = config.drafter, config.draft_length
    assert drafter is not None
    assert (drafter.candidate_mass, drafter.max_candidates) == (0.8, 15)
    assert (drafter.num_refinement_steps, config.search.beam_width) == (1, 3)
    assert (length.min_draft_tokens, length.max_draft_tokens) == (20, 30)
    assert (length.growth, length.smoothing) == (10, 0.5)
    assert config.speculation.drafter_weight == 0.5


def test_the_default_speculation_is_that_of_a_request():
    config = parse_config({"target": TARGET})
    assert config.speculation == SpeculationParams()


WRONG: list[tuple[dict[str, object], str]] = [
    ({}, "target: Field required"),
    ({"target": "model"}, "target: Input should be"),
    ({"target": {}}, "target.path: Field required"),
    ({"target": TARGET, "drafters": {}}, "drafters: Extra inputs are not permitted"),
    ({"target": TARGET | {"pth": 1}}, "target.pth: Extra inputs are not permitted, got 1"),
    ({"target": TARGET | {"device": "tpu"}}, "target.device: .*'auto', 'cpu' or 'cuda', got 'tpu'"),
    ({"target": TARGET | {"dtype": "int4"}}, "target.dtype: .*got 'int4'"),
    ({"target": TARGET | {"max_sequences": 0}}, "target.max_sequences: .*greater .*1, got 0"),
    ({"target": TARGET | {"max_sequences": "few"}}, "target.max_sequences: .*got 'few'"),
    ({"target": TARGET | {"max_model_len": 1}}, "target.max_model_len: .*equal to 2, got 1"),
    ({"target": TARGET | {"max_tree_nodes": 257}}, "target.max_tree_nodes: .*256, got 257"),
    ({"target": TARGET, "drafter": {}}, "drafter.path: Field required"),
    (
        {"target": TARGET, "drafter": {"path": "d", "candidate_mass": 0}},
        "drafter.candidate_mass: .*greater than 0, got 0",
    ),
    (
        {"target": TARGET, "drafter": {"path": "d", "candidate_mass": float("nan")}},
        "drafter.candidate_mass: .*got nan",
    ),
    (
        {"target": TARGET, "drafter": {"path": "d", "num_refinement_steps": 0}},
        "drafter.num_refinement_steps: .*got 0",
    ),
    ({"target": TARGET, "search": {"beam_width": 0}}, "search.beam_width: .*got 0"),
    ({"target": TARGET, "search": {"ngram": 3}}, "search.ngram: .*got 3"),
    (
        {"target": TARGET, "draft_length": {"max_draft_tokens": 10}},
        "draft_length: .*min_draft_tokens 20 is above max_draft_tokens 10",
    ),
    (
        {"target": TARGET, "draft_length": {"max_draft_tokens": 129}},
        "draft_length.max_draft_tokens: .*128, got 129",
    ),
    ({"target": TARGET, "draft_length": {"smoothing": 1.5}}, "draft_length.smoothing: .*got 1.5"),
    ({"target": TARGET, "speculation": {"policy": "best"}}, "speculation.policy: .*got 'best'"),
    ({"target": TARGET, "speculation": {"tree_shape": "oak"}}, "tree_shape: .*got 'oak'"),
    ({"target": TARGET, "speculation": {"drafter_weight": 1.5}}, "drafter_weight.*got 1.5"),
    ({"target": TARGET, "speculation": {"drafter_weight": "auto"}}, "drafter_weight.*got 'auto'"),
    (
        {"target": TARGET, "speculation": {"max_nodes": 65}},
        "speculation.max_nodes 65 is above target.max_tree_nodes 64",
    ),
    ({"target": TARGET, "coordinator": {"max_waiting": -1}}, "coordinator.max_waiting: .*got -1"),
    ({"target": TARGET, "coordinator": {"max_draft_seconds": 0}}, "max_draft_seconds: .*got 0"),
    (
        {"target": TARGET, "coordinator": {"prefill_chunk_tokens": 0}},
        "coordinator.prefill_chunk_tokens: .*got 0",
    ),
]


@pytest.mark.parametrize(("data", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_configuration_is_refused_by_name_and_value(data, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(data)


def test_all_that_is_wrong_is_told_at_once():
    data: dict[str, object] = {"target": {"max_sequences": 0}, "search": {"beam_width": 0}}
    with pytest.raises(ConfigError, match=r"target\.path.*target\.max_sequences.*search\.beam"):
        parse_config(data)


def test_a_long_wrong_value_is_shortened_in_the_message():
    with pytest.raises(ConfigError) as caught:
        parse_config({"target": TARGET | {"device": "x" * 1000}})
    assert len(str(caught.value)) < 250


def test_a_yaml_file_is_read(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("target: {path: a/b, dtype: float32}\nspeculation: {drafter_weight: adaptive}")
    config = load_config(file)
    assert config.target.path == Path("a/b") and config.target.dtype == "float32"
    assert config.speculation.drafter_weight == "adaptive"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"target: {path: [", "cannot read configuration"),
        (b"\xff\xfe\x00", "cannot read configuration"),
        (b"", "must be a mapping with named sections"),
        (b"- target", "must be a mapping"),
        (b"target: {path: m}\n1: 2", "1: "),
        (b"target: !!python/object/apply:os.system ['true']", "cannot read configuration"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_configuration_cannot_be_changed():
    config = parse_config({"target": TARGET})
    with pytest.raises(ValueError, match="frozen"):
        config.target.device = "cpu"  # type: ignore[misc]
    assert isinstance(config, EngineConfig)
