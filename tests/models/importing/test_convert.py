from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.importing import convert
from diffuspec.models.importing.convert import STAGES, import_gguf
from diffuspec.text.directory import read_json
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.checkpoints import CHAT_TEMPLATE
from tests.support.gguf_files import write_gguf


@pytest.fixture(scope="module")
def imported(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "deeper" / "model"
    stages: list[str] = []
    model = import_gguf(gguf_file, out, "float32", stages.append)
    assert (model.model_class, model.num_token_ids) == ("LlamaForCausalLM", 259)
    assert model.has_chat_template
    assert tuple(stages) == STAGES
    return out


@torch.inference_mode()
def test_an_imported_model_says_what_transformers_reads_in_the_file(
    gguf_file: Path, imported: Path
) -> None:
    token_ids = torch.tensor([[72, 101, 108, 108, 111]])
    read: Any = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    ours: Any = AutoModelForCausalLM.from_pretrained(imported)
    assert torch.equal(read(token_ids).logits, ours(token_ids).logits)


def test_an_imported_directory_is_complete(imported: Path) -> None:
    tokenizer = load_tokenizer(imported)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.decode(tokenizer.encode("x = 12; größer")) == "x = 12; größer"
    assert read_json(imported, "generation_config.json")["eos_token_id"] == [256, 257]
    assert "quantization_config" not in read_json(imported, "config.json")
    assert [path.name for path in imported.parent.iterdir()] == ["model"]


def test_weights_are_stored_in_bfloat16_when_that_is_asked(
    gguf_file: Path, imported: Path, tmp_path: Path
) -> None:
    import_gguf(gguf_file, tmp_path / "half", "bfloat16")
    size, half = (
        (path / "model.safetensors").stat().st_size for path in (imported, tmp_path / "half")
    )
    assert half < 0.6 * size


def test_a_directory_that_holds_something_is_left_alone(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelLoadError, match="exists already"):
        import_gguf(gguf_file, tmp_path, "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("error", [ModelLoadError("wrong tokens"), KeyboardInterrupt()])
def test_an_import_that_ends_early_leaves_nothing(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(convert, "_check_tokens", fail)
    with pytest.raises(type(error)):
        import_gguf(gguf_file, tmp_path / "model", "float32")
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_cannot_be_built_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "file.gguf", tokenizer="rwkv")
    with pytest.raises(ModelLoadError, match="cannot read its tokenizer"):
        import_gguf(path, tmp_path / "model", "float32")
    assert [file.name for file in tmp_path.iterdir()] == ["file.gguf"]
