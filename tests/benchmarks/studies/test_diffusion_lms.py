"""Diffusion LMs are compared in turns, each with its own loop."""

import pytest
from typer.testing import CliRunner

from benchmarks.studies.diffusion_lms import (
    app,
    compare,
    make_config,
    name_drafters,
    parse_drafter,
    with_steps,
)
from diffuspec.bench.questions import Question
from diffuspec.core.errors import ConfigError
from tests.support.models import edit_json


def test_drafters_are_named_by_what_tells_them_apart():
    named = name_drafters([parse_drafter(one) for one in ("a/x", "b/x", "b/x:8")])
    assert list(named) == ["a/x", "b/x", "b/x:8"]
    assert [section.block_size for section in named.values()] == [None, None, 8]
    one = name_drafters([parse_drafter("models/one:32")])
    assert list(one) == ["one:32"]
    found = with_steps(one, [1, 3])
    assert {name: section.num_refinement_steps for name, section in found.items()} == {
        "one:32": 1,
        "one:32, 3 steps": 3,
    }
    with pytest.raises(ConfigError, match="a drafter is given twice"):
        name_drafters([parse_drafter("a/x"), parse_drafter("a/x")])
    with pytest.raises(ConfigError, match="from 1 to 256, got 999 in 'a:999'"):
        parse_drafter("a:999")


def test_drafters_of_different_attention_answer_alike(pair, tmp_path):
    target, drafter = pair
    aligned = tmp_path / "aligned"
    aligned.mkdir()
    for file in drafter.iterdir():
        (aligned / file.name).write_bytes(file.read_bytes())
    fields = {"diffusion_attention": "block_aligned", "diffusion_block_size": 4}
    edit_json(aligned / "config.json", **fields)
    sections = name_drafters([parse_drafter(str(one)) for one in (drafter, aligned)])
    asked = [Question(1, "qa", ("What is it?",), ())]
    found = compare(make_config("tiny", target, None), sections, asked, 16, whole_drafts=True)
    assert not found.mismatches
    names = {row.system for row in found.rows}
    assert names == {"plain", "drafter", "aligned"}
    causal = next(row for row in found.rows if row.system == "drafter")
    assert causal.mean_acceptance_length > 1  # the target's own weights
    assert found.tables()[0].title.startswith("Speed over ")


def test_a_drafter_that_is_not_there_is_named_in_one_line(tmp_path):
    result = CliRunner().invoke(app, [str(tmp_path / "gone"), "--limit", "1"])
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ") and str(tmp_path / "gone") in line
