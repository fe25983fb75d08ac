"""Pairs by name."""

from dataclasses import replace

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.pairs import (
    PAIRS,
    fill_in_draft_server,
    find_pair,
    load_config,
    parse_config,
    smollm2,
)
from diffuspec.pairs.tiny import DRAFTER, TARGET


def test_a_pair_has_the_draft_heads_that_are_where_training_is_to_put_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = find_pair("smollm2", "--pair")
    assert pair.other_drafters() == {}
    folder = tmp_path / "models" / "smollm2-eagle"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    sections = pair.other_drafters()
    assert set(sections) == {"eagle", "eagle2"}
    assert sections["eagle2"] == {"kind": "eagle2", "path": folder}


def test_the_shipped_drafters_draft_as_causal_lms_too(tmp_path, monkeypatch):
    assert PAIRS["tiny"].other_drafters()["sps"] == {"kind": "sps", "path": DRAFTER}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smollm2, "_CHECKOUT", tmp_path)
    section = PAIRS["smollm2"].other_drafters()["sps"]
    assert section["path"] == smollm2.DRAFTER
    assert inspect_checkpoint(smollm2.DRAFTER).diffusion.continues_text


def test_a_file_names_a_pair_and_overrides_keys_of_its_sections(tmp_path):
    file = tmp_path / "engine.yaml"
    file.write_text("preset: tiny\ntarget: {max_sequences: 3}\n")
    config = load_config(file)
    assert (config.target.path, config.target.max_sequences) == (TARGET, 3)
    assert config.drafter == PAIRS["tiny"].load_config().drafter
    assert parse_config({"preset": "tiny", "drafter": None}).drafter is None
    with pytest.raises(ConfigError, match=r"^preset must be tiny or smollm2, got 'small'$"):
        parse_config({"preset": "small"})
    file.write_text("preset: tiny\nzz: {}\n")
    known = "unknown key `zz`; known are `preset`, `serve`, `target`"
    with pytest.raises(ConfigError, match=f"^{known}"):
        load_config(file)


def test_a_draft_server_searches_with_the_weight_of_its_pair(monkeypatch):
    config = parse_config({"preset": "tiny", "speculation": {"drafter_weight": 0.7}})
    pair = replace(PAIRS["tiny"], load_config=lambda: config)
    monkeypatch.setitem(PAIRS, "tiny", pair)
    assert fill_in_draft_server({"preset": "tiny"})["drafter_weight"] == 0.7
    given = {"preset": "tiny", "drafter_weight": "adaptive"}
    assert fill_in_draft_server(given)["drafter_weight"] == "adaptive"
