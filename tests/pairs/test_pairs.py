"""Pairs by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffuspec.pairs import find_pair


def test_a_pair_has_the_heads_that_are_where_training_is_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair = find_pair("smollm2", "--pair")
    assert pair.head_sections() == {}
    folder = tmp_path / "models" / "smollm2-eagle"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    sections = pair.head_sections()
    assert set(sections) == {"eagle", "eagle2"}
    assert sections["eagle2"] == {"kind": "eagle2", "path": folder}
