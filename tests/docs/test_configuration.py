"""The configuration reference is current, and each of its examples is a configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from actors.settings import parse_pipeline
from diffuspec.core.config import EngineConfig, parse_config
from tests.support.documents import ROOT, Block, blocks

REFERENCE = ROOT / "docs" / "configuration.md"
GENERATOR = ROOT / "docs" / "make_configuration.py"


def yaml_blocks() -> list[Block]:
    return [block for block in blocks(REFERENCE) if block.language == "yaml"]


def test_the_reference_is_what_the_schema_says():
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_reference_is_refused_and_made_again(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(GENERATOR.parent)
    import make_configuration

    stale = tmp_path / "configuration.md"
    stale.write_text("| `max_sequences` | integer | `7` |\n", encoding="utf-8")
    monkeypatch.setattr(make_configuration, "OUTPUT", stale)
    assert make_configuration.main(["--check"]) == 1
    assert make_configuration.main([]) == 0
    assert stale.read_text(encoding="utf-8") == REFERENCE.read_text(encoding="utf-8")


@pytest.mark.parametrize("block", yaml_blocks(), ids=str)
def test_every_example_can_be_loaded(block: Block):
    data = yaml.safe_load(block.text)
    if data.keys() <= EngineConfig.model_fields.keys():
        parse_config({"target": {"path": "target"}, **data})
    else:
        parse_pipeline({"engine": {"preset": "tiny"}, **data})
