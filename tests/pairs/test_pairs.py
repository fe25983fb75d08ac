"""Pairs by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.pairs import PAIRS, find_pair, smollm2
from diffuspec.pairs.tiny import DRAFTER


def test_a_pair_has_the_draft_heads_that_are_where_training_is_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair = find_pair("smollm2", "--pair")
    assert pair.other_drafters() == {}
    folder = tmp_path / "models" / "smollm2-eagle"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    sections = pair.other_drafters()
    assert set(sections) == {"eagle", "eagle2"}
    assert sections["eagle2"] == {"kind": "eagle2", "path": folder}


def test_the_shipped_drafters_draft_as_causal_lms_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PAIRS["tiny"].other_drafters()["sps"] == {"kind": "sps", "path": DRAFTER}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smollm2, "_CHECKOUT", tmp_path)
    section = PAIRS["smollm2"].other_drafters()["sps"]
    assert section["path"] == smollm2.DRAFTER
    assert inspect_checkpoint(smollm2.DRAFTER).diffusion.continues_text
