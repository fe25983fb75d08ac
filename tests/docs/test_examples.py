"""The examples in the documents run, on the embedded pair."""

import ast
import shlex
import textwrap

import pytest
from typer.testing import CliRunner

from diffuspec.cli.app import app
from tests.support.documents import DOCUMENTS, ROOT, Block, blocks

PYTHON = [block for path in DOCUMENTS for block in blocks(path) if block.language == "python"]
QUOTED = "quoted from "  # and a path, in the comment before a block
PLACEHOLDERS = ("DIR", "FILE", "FILE.gguf", "FILE.yaml")

pytestmark = pytest.mark.no_cover  # the lines are those that other tests run


def generate_commands() -> list[str]:
    """Return all lines of shell blocks that only ask the embedded pair."""
    lines = [
        line
        for path in DOCUMENTS
        for block in blocks(path)
        if block.language == "bash"
        for line in block.text.splitlines()
    ]
    asking = [line for line in lines if "diffuspec generate" in line]
    return [line for line in asking if not set(shlex.split(line)) & {*PLACEHOLDERS, "--pair"}]


@pytest.mark.parametrize("block", [block for block in PYTHON if not block.note], ids=str)
def test_python_examples_run(block: Block):
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("block", [block for block in PYTHON if block.note], ids=str)
def test_what_other_python_examples_import_is_there(block: Block):
    tree = ast.parse(block.text)
    tree.body = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    exec(compile(tree, str(block), "exec"), {})


@pytest.mark.parametrize("line", generate_commands())
def test_shell_examples_answer(line: str):
    said, _, command = line.rpartition(" | ")
    words = shlex.split(command, comments=True)
    stdin = shlex.split(said)[1] if said else None  # of echo
    result = CliRunner().invoke(app, words[1:], input=stdin)
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.split()) > 3


@pytest.mark.parametrize("block", [b for b in PYTHON if b.note.startswith(QUOTED)], ids=str)
def test_what_is_quoted_stands_in_the_code(block: Block):
    source = (ROOT / block.note.removeprefix(QUOTED)).read_text(encoding="utf-8")
    assert any(textwrap.indent(block.text, " " * spaces) in source for spaces in (0, 4))
