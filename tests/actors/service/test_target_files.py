"""An ingress on a node without the target's files has them from a pipeline's node."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.service import target_files
from actors.service.directory import Directory
from actors.service.target_files import fetch_files, read_files
from diffuspec.core.errors import ModelLoadError, WorkerError
from diffuspec.pairs.tiny import TARGET
from diffuspec.serve.conventions import Conventions, read_conventions
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.tokenizer import load_tokenizer


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(target_files, "_PAUSE_SECONDS", 0)


async def keep(files: Mapping[str, bytes]) -> Path:
    async def ask() -> Mapping[str, bytes]:
        return files

    return await fetch_files(ask)


def conventions(path: Path) -> Conventions:
    return read_conventions(path, load_tokenizer(path), ServeSettings())


async def test_an_ingress_reads_the_same_from_a_copy_without_weights():
    files = read_files(TARGET)
    assert not any(name.endswith(".safetensors") for name in files)
    folder = await keep(files)
    assert conventions(folder) == conventions(TARGET) and conventions(folder).template
    assert await keep(files) == folder


async def test_templates_in_folders_come_along_and_the_index_of_weights_does_not(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    for name in ("model.safetensors.index.json", "additional_chat_templates/tools.jinja"):
        (tmp_path / name).write_text("{}")
    files = read_files(tmp_path)
    assert files == {"additional_chat_templates/tools.jinja": b"{}"}
    assert read_files(await keep(files)) == files


def test_a_gguf_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"model\.gguf does not exist"):
        read_files(tmp_path / "model.gguf")


async def test_an_ingress_waits_until_a_pipeline_was_told_that_files_are_wanted():
    directory, pipeline = Directory(), SimpleNamespace(name="a")
    announced: Any = pipeline
    assert not await directory.announce(announced)
    is_away = True

    async def ask() -> Mapping[str, bytes]:
        nonlocal is_away
        if is_away:
            is_away = False
            raise WorkerError("the directory does not answer")
        found = await directory.files()
        if await directory.announce(announced):
            await directory.announce_files({"config.json": b"{}"})
        return found

    assert read_files(await fetch_files(ask)) == {"config.json": b"{}"}
    assert not await directory.announce(announced)
