"""Files that grow line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffuspec.core.files import cut_torn_line


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
