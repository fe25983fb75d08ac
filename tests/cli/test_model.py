from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import error_line
from tests.support.gguf_files import write_gguf

Run = Callable[..., Any]


def test_import_tells_what_it_made_and_refuses_to_write_over_it(
    diffuspec: Run, tmp_path: Path
) -> None:
    file, out = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "model"
    result = diffuspec("model", "import", file, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith(f"{out}: LlamaForCausalLM, ")
    assert "in bfloat16, 259 token ids, a chat template; 8 tokens as in" in result.stdout
    again = diffuspec("model", "import", file, "--out", out)
    assert again.exit_code == 2
    assert error_line(again) == f"{out} exists already: name a new directory, or remove it"


def test_import_refuses_foreign_files_and_precisions_in_one_line(
    diffuspec: Run, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    foreign = diffuspec("model", "import", tmp_path / "notes.txt", "--out", tmp_path / "model")
    assert foreign.exit_code == 2
    assert "notes.txt is not a GGUF file" in error_line(foreign)
    wrong = diffuspec("model", "import", "x.gguf", "--out", "model", "--dtype", "int4")
    assert error_line(wrong).startswith("--dtype must be bfloat16, float16, float32, got 'int4'")
