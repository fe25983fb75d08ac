"""What is wrong with a configuration is said in plain English, all of it at once."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import read_yaml
from diffuspec.pairs import load_config, parse_config

TARGET = {"path": "model"}


def test_one_error_names_every_wrong_key():
    data: dict[str, object] = {"target": {"max_sequences": 0}, "search": {"beam_width": 0}}
    with pytest.raises(ConfigError, match=r"target\.path.*target\.max_sequences.*search\.beam"):
        parse_config(data)


def test_a_long_wrong_value_is_shortened_in_the_message():
    with pytest.raises(ConfigError) as caught:
        parse_config({"target": TARGET | {"device": "x" * 1000}})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("section", "key", "value", "right"),
    [
        ("target", "max_sequences", True, "an integer"),
        ("target", "max_sequences", "8", "an integer"),
        ("target", "max_sequences", 8.0, "an integer"),
        ("target", "exact", 1, "true or false"),
        ("coordinator", "max_draft_seconds", True, "a number"),
        ("coordinator", "max_draft_seconds", "60", "a number"),
        ("speculation", "num_draft_tokens", True, "an integer"),
        ("speculation", "num_outcomes", True, "an integer, or 'auto'"),
    ],
)
def test_a_value_of_another_type_is_refused_though_it_could_be_converted(
    section, key, value, right
):
    data = {"target": dict(TARGET)}
    data.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    assert str(caught.value) == f"{section}.{key} must be {right}, got {value!r}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"searches": {}}, "unknown key `searches`; did you mean `search`?"),
        ({"presets": "tiny"}, "unknown key `presets`; did you mean `preset`?"),
        (
            {"target": TARGET | {"max_sequence": 1}},
            "target: unknown key `max_sequence`; did you mean `max_sequences`?",
        ),
        (
            {"speculation": {"max_node": 1}},
            "speculation: unknown key `max_node`; did you mean `max_nodes`?",
        ),
        (
            {"search": {"zz": 1}},
            "search: unknown key `zz`; known are `ngram`, `causal_lm`, `beam_width`, "
            "`cache_weight`, `retrieval`",
        ),
        (
            {"drafter": {"kind": "pld", "max_ngram": 2}},
            "drafter: unknown key `max_ngram`; did you mean `max_ngram_tokens`?",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_ones(data, message):
    with pytest.raises(ConfigError) as caught:
        parse_config({"target": TARGET} | data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"target: {path: [",
            "cannot read configuration .*: not YAML in line 1: expected the node",
        ),
        (b"\xff\xfe\x00", "cannot read configuration .*: not UTF-8 text"),
        (b"", "is empty; it must have named sections"),
        (b"- target", "must be a mapping"),
        (b"target: {path: m}\n1: 2", "unknown key `1`"),
        (b"a: " + b"[" * 1000, "config.yaml is nested too deeply"),
        (b"a: " + b"x" * 2**20, "config.yaml has more than 1048576 bytes"),
        (
            b"a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + b"".join(
                f"{next}: &{next} [{', '.join(['*' + name] * 10)}]\n".encode()
                for name, next in pairwise("abcdef")
            ),
            "aliases stand for more than 100000 values",
        ),
        (b"target: &t {path: a, search: *t}", "aliases stand for more than 100000 values"),
        (b"target: !!python/object/apply:os.system ['true']", "cannot read configuration"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


@pytest.mark.parametrize(
    "content", ["target: {path: m}\ntarget: {path: n}", "target:\n  path: a\n\n  path: b"]
)
def test_a_key_that_is_given_twice_is_refused_with_its_lines(tmp_path, content):
    file = tmp_path / "config.yaml"
    file.write_text(content)
    last = content.count("\n") + 1
    with pytest.raises(ConfigError, match=rf"key `\w+` in line {last} is already in line [12]$"):
        load_config(file)


def test_a_merged_key_may_be_overridden(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("target: &t {path: a, max_sequences: 2}\ndrafter: {<<: *t, path: b}")
    with pytest.raises(ConfigError, match=r"^drafter: unknown key `max_sequences`"):
        load_config(file)


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1.e-3", "+1e-3", "0.001"])
def test_numbers_may_have_an_exponent(tmp_path, number):
    file = tmp_path / "config.yaml"
    file.write_text(f"target: {{path: m}}\ncoordinator: {{max_draft_seconds: {number}}}")
    assert load_config(file).coordinator.max_draft_seconds == 0.001


def test_a_pipe_is_refused_without_waiting_for_what_is_written_to_it(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match=r"config\.yaml: it is not a file"):
        load_config(tmp_path / "config.yaml")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_text_that_begins_like_a_number_is_text(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("hash: 327e0279a092\nnumber: 1e3\n")
    assert read_yaml(path) == {"hash": "327e0279a092", "number": 1000.0}
