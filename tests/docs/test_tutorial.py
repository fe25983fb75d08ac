"""What the tutorial has its readers type does what it shows."""

import pytest

from diffuspec.engine.engine import Engine
from diffuspec.serve.settings import ServeSettings
from tests.support.documents import ROOT, Block, blocks
from tests.support.engines import short_tiny_config
from tests.support.service import serving

TUTORIAL = ROOT / "docs" / "tutorial.md"
NUM_FIGURES = 6  # in a line, before the prompt


@pytest.fixture
def texts() -> list[Block]:
    """What is printed, and what is written to prompts.txt."""
    return [block for block in blocks(TUTORIAL) if block.language == "text"]


def test_its_script_prints_a_line_for_each_prompt_as_shown(texts, tmp_path, monkeypatch, capsys):
    [script] = [block.text for block in blocks(TUTORIAL) if block.language == "python"]
    prompts, shown = texts[-2].text, texts[-1].text.splitlines()
    (tmp_path / "prompts.txt").write_text(prompts)
    monkeypatch.chdir(tmp_path)
    with serving(lambda: Engine.from_config(short_tiny_config()), ServeSettings()) as service:
        exec(
            compile(script.replace("http://127.0.0.1:8000", service.url), "compare.py", "exec"), {}
        )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == shown[0]
    assert len(printed) == len(shown) == len(prompts.splitlines()) + 2
    for mine, theirs in zip(printed[1:-1], shown[1:-1], strict=True):
        *figures, prompt = mine.split(maxsplit=NUM_FIGURES)
        assert figures[-1] == "True" and prompt == theirs.split(maxsplit=NUM_FIGURES)[-1]
    assert printed[-1].split(":")[0] == shown[-1].split(":")[0]
