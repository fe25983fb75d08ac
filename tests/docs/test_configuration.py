"""The configuration reference is current, and each of its examples is a configuration."""

import runpy
from pathlib import Path

import pytest
import yaml

from actors.draft_pool import DraftPoolConfig
from actors.settings import parse_pipeline
from diffuspec.core.config import EngineConfig
from diffuspec.core.validation import validate
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.pairs import fill_in_draft_server, parse_config
from diffuspec.serve.settings import ServeSettings
from tests.support.documents import ROOT, Block, blocks

REFERENCE = ROOT / "docs" / "configuration.md"
GENERATOR = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))


def yaml_blocks() -> list[Block]:
    return [block for block in blocks(REFERENCE) if block.language == "yaml"]


def test_the_reference_is_what_the_schema_says():
    assert GENERATOR["main"](["--check"]) == 0, "run make docs"


def test_a_stale_reference_is_refused_and_made_again(tmp_path: Path):
    stale = tmp_path / "configuration.md"
    stale.write_text("| `max_sequences` | integer | `7` |\n", encoding="utf-8")
    assert GENERATOR["main"](["--check", "--output", str(stale)]) == 1
    assert GENERATOR["main"](["--output", str(stale)]) == 0
    assert stale.read_text(encoding="utf-8") == REFERENCE.read_text(encoding="utf-8")


def test_bounds_that_are_themselves_wrong_are_told_from_those_that_are_right():
    values = GENERATOR["_values"]
    assert values({"type": "number", "minimum": 0, "exclusiveMaximum": 1}) == "0 or more, below 1"
    assert values({"type": "number", "exclusiveMinimum": 0, "maximum": 1}) == "above 0, at most 1"


@pytest.mark.parametrize("block", yaml_blocks(), ids=str)
def test_every_example_can_be_loaded(block: Block):
    data = yaml.safe_load(block.text)
    if data.keys() == {"serve"}:
        validate(ServeSettings, data["serve"])
    elif "tokenizer" in data:
        validate(DraftServerConfig, data)
    elif "server" in data:
        validate(DraftPoolConfig, {**data, "server": fill_in_draft_server(data["server"])})
    elif data.keys() <= EngineConfig.model_fields.keys():
        parse_config({"target": {"path": "target"}, **data})
    else:
        parse_pipeline({"engine": {"preset": "tiny"}, **data})
