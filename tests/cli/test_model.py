from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import error_line
from tests.support.chat_models import QWEN, chat_tokenizer
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


def test_explain_tells_how_a_directory_is_served(diffuspec: Run, tmp_path: Path) -> None:
    chat_tokenizer(QWEN).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "max_new_tokens": 9}')
    result = diffuspec("model", "explain", tmp_path)
    assert result.exit_code == 0, result.stderr
    for line in (
        "answers end at    262 <|im_end|>",
        "content           one text",
        "variables         enable_thinking",
        "tool calls        hermes",
        "reasoning         qwen3",
        "sampling          temperature 0.6",
        "longest answer    9 tokens",
    ):
        assert line in result.stdout
    other = diffuspec("model", "explain", tmp_path, "--reasoning-parser", "jamba")
    assert error_line(other).startswith("reasoning_parser must be qwen3, deepseek_r1")
