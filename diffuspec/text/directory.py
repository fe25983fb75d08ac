"""What can be said of a model directory before any of its files is read."""

from __future__ import annotations

import re
from pathlib import Path

from diffuspec.core.errors import ModelLoadError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_POINTER = b"version https://git-lfs.github.com/spec/"


def check_directory(path: Path) -> None:
    """Raise ModelLoadError unless there is such a directory."""
    if path.is_dir():
        return
    if path.exists():
        raise ModelLoadError(f"model directory {path} is a file")
    hint = ""
    if _HUB_ID.fullmatch(str(path)):
        hint = (
            "; if it is a model of the Hugging Face hub, fetch it first, as by "
            f"`hf download {path} --local-dir models/{path.name}`, and name that directory"
        )
    raise ModelLoadError(f"model directory {path} does not exist{hint}")


def check_is_no_pointer(file: Path) -> None:
    """Raise ModelLoadError for a file whose content Git LFS has not fetched."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_POINTER))
    except OSError:  # the code that reads the whole file next reports it
        return
    if start == _POINTER:
        raise ModelLoadError(
            f"{file} is a pointer of Git LFS, not the file itself: run `git lfs pull` in "
            f"{file.parent}"
        )
