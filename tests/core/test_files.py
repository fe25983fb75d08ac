"""Files of processes that may be killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffuspec.core.files import append_line, cut_torn_line, replace_text


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b"one\ntwo\n", b"one\ntwo\n"),
        (b"one\ntw", b"one\n"),
        (b"on", b""),
        (b"one\n" + b"x" * 2**20, b"one\n"),
    ],
    ids=["empty", "whole", "torn", "torn at once", "torn far from its newline"],
)
def test_what_follows_the_last_newline_is_cut(content: bytes, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    with path.open("r+b") as file:
        cut_torn_line(file)
        assert file.tell() == 0
    assert path.read_bytes() == kept


def test_a_line_takes_the_place_of_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")
    with path.open("a") as file:
        file.write("tw")
    append_line(path, "three")
    assert path.read_text() == "one\nthree\n"


def test_a_text_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for text in ("a longer text", "short"):
        replace_text(path, text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]
