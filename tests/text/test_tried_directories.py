"""Tokenizers and templates of foreign directories are tried, within limits, before their use."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from diffuspec.core.errors import InvalidRequestError, ModelLoadError
from diffuspec.pairs import tiny
from diffuspec.text import tried_directories
from diffuspec.text.prompt import encode_prompt
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec.text.tried_directories import try_directory
from tests.support.chat_models import FAMILIES, QWEN, chat_tokenizer


def saved(path: Path, template: str = QWEN.template, **rules: Any) -> Path:
    """Save Qwen's kind of tokenizer with another template, or with other rules for texts."""
    tokenizer = chat_tokenizer(QWEN)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    file = path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | rules))
    return path


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip


FOURFOLD = [replace({"Regex": "."}, "xxxx")] * 4
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}TEXT{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LOOP.replace("TEXT", "ten letters"), "writes more than 1048576 characters"),
        ("{{ 'x' * 6000000000 }}", "more than 2048 MiB of memory"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "nested too deeply"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested too deeply"),
    ],
)
def test_a_template_that_fills_the_memory_is_refused_by_name(tmp_path, template, message):
    with pytest.raises(ModelLoadError, match=rf"chat_template\.jinja is refused: .*{message}"):
        load_tokenizer(saved(tmp_path, template))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"normalizer": replace({"String": "e"}, "x" * 100_000)}, "its normalizer makes"),
        ({"normalizer": {"type": "Sequence", "normalizers": FOURFOLD}}, "its normalizer makes"),
        ({"normalizer": replace({"Regex": "(a|aa)+$"}, "b")}, "rules fail on ordinary texts"),
        ({"decoder": {"type": "Sequence", "decoders": FOURFOLD}}, "its decoder makes"),
    ],
    ids=["long", "sequence", "panic", "decoder"],
)
def test_a_tokenizer_whose_rules_explode_is_refused_by_name(tmp_path, rules, message):
    with pytest.raises(ModelLoadError, match=rf"tokenizer\.json is refused: .*{message}"):
        load_tokenizer(saved(tmp_path, **rules))


def test_a_template_that_loops_is_refused_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(tried_directories, "_CPU_SECONDS", 1)
    message = "a trial of it took more than 1 seconds of computing"
    with pytest.raises(ModelLoadError, match=message):
        load_tokenizer(saved(tmp_path, LOOP.replace("TEXT", "")))


def test_other_tokenizers_and_templates_in_a_directory_are_tried_too(tmp_path):
    bomb = LOOP.replace("TEXT", "ten letters")
    for place, name in enumerate(("tokenizer_config.json", "additional_chat_templates/a.jinja")):
        path = saved(tmp_path / str(place))
        (path / name).parent.mkdir(exist_ok=True)
        template = json.dumps({"chat_template": [{"name": "a", "template": bomb}]})
        (path / name).write_text(bomb if name.endswith("jinja") else template)
        with pytest.raises(ModelLoadError, match=f"{name} is refused"):
            try_directory(path)
    path = saved(tmp_path / "old")
    (path / "tokenizer.4.0.0.json").write_text("[" * 10_000)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.4\.0\.0\.json is refused"):
        try_directory(path)


def test_what_was_tried_is_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_tokenizer(saved(tmp_path / "a"))
    monkeypatch.setattr(tried_directories, "_try", None)
    load_tokenizer(saved(tmp_path / "b"))
    with pytest.raises(TypeError):
        load_tokenizer(saved(tmp_path / "c", template="{{ messages }}"))


def test_the_embedded_pair_is_not_tried(monkeypatch):
    monkeypatch.setattr(tried_directories, "_digest", None)
    load_tokenizer(next(Path(tiny.__file__).parent.rglob("tokenizer.json")).parent)


def test_a_user_without_a_home_directory_is_no_obstacle(tmp_path, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(tried_directories, "cache_directory", no_home)
    load_tokenizer(saved(tmp_path / "a"))


def test_a_trial_that_fails_itself_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("diffuspec.text.tokenizer_trial.__file__", str(tmp_path / "nowhere.py"))
    with pytest.raises(ModelLoadError, match=r"status 2: .*nowhere\.py.*No such file"):
        try_directory(saved(tmp_path, template="{{ messages }} of this test"))


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    load_tokenizer(saved(tmp_path / "a"))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_templates_of_families_pass(tmp_path, name):
    try_directory(saved(tmp_path, FAMILIES[name].template + "{% generation %}a{% endgeneration %}"))


def test_a_text_on_which_a_tokenizer_fails_is_refused_alone(tmp_path):
    tokenizer = load_tokenizer(saved(tmp_path, pre_tokenizer=split("(é|éé)+$")))
    assert len(encode_prompt("abc", tokenizer, None)) == 3
    with pytest.raises(InvalidRequestError, match="rules fail on this text"):
        encode_prompt("é" * 100 + "!", tokenizer, None)


def test_a_pipe_in_the_directory_is_not_waited_for(tmp_path):
    os.mkfifo(saved(tmp_path) / "special_tokens_map.json")
    with pytest.raises(ModelLoadError, match=r"special_tokens_map\.json is not a file"):
        load_tokenizer(tmp_path)
