"""Reading what a file holds, and ARPA to binary."""

import os
from pathlib import Path

import pytest

from diffuspec.core.errors import MissingDependencyError, NgramError
from diffuspec.models.ngram.arpa import write_arpa
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.kenlm_file import build_binary, read_header
from tests.models.ngram.conftest import read_corpus


def put_build_binary_on_path(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "build_binary"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_text_and_binary_have_the_same_numbers_of_ngrams(
    small_arpa: Path, small_binary: Path
) -> None:
    for path in (small_arpa, small_binary):
        assert read_header(path).num_ngrams == (22, 116, 154)


def test_our_arpa_file_lists_the_estimated_numbers_of_ngrams(tmp_path: Path) -> None:
    model = estimate(read_corpus("small"), order=4)
    write_arpa(model, tmp_path / "model.arpa")
    assert read_header(tmp_path / "model.arpa").num_ngrams == tuple(map(len, model.tables))


def test_without_build_binary_the_error_says_what_to_do(
    small_arpa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"not on PATH.*github.com/kpu/kenlm"):
        build_binary(small_arpa, tmp_path / "small.bin")


def test_a_failed_conversion_reports_the_last_line_and_leaves_nothing(
    small_arpa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'for last; do :; done; echo half > "$last"; echo progress >&2; echo why >&2; exit 1'
    put_build_binary_on_path(tmp_path, script, monkeypatch)
    output = tmp_path / "out" / "small.bin"
    output.parent.mkdir()
    with pytest.raises(NgramError, match=r"small\.arpa: why$"):
        build_binary(small_arpa, output)
    assert list(output.parent.iterdir()) == []


def test_conversion_asks_for_a_trie_of_8_bits(
    small_arpa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_build_binary_on_path(tmp_path, 'for last; do :; done; echo "$@" > "$last"', monkeypatch)
    build_binary(small_arpa, tmp_path / "small.bin")
    assert (tmp_path / "small.bin").read_text().startswith(f"-q 8 -b 8 trie {small_arpa} ")


def test_conversion_refuses_files_that_are_not_arpa(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_build_binary_on_path(tmp_path, "exit 0", monkeypatch)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NgramError, match="not a KenLM file"):
        build_binary(tmp_path / "notes.txt", tmp_path / "notes.bin")
