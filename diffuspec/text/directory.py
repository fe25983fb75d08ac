"""Checks of a model directory before its weights are read, and its JSON files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ConfigError, ModelLoadError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_POINTER = b"version https://git-lfs.github.com/spec/"


def cache_directory() -> Path:
    """Return the folder of the user's cache for what can be made again from model files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffuspec"


def check_directory(path: Path) -> None:
    """Raise ModelLoadError unless the directory exists and has only files and directories."""
    if path.is_dir():
        try:
            for entry in path.iterdir():
                check_is_file(entry, may_be_directory=True)
        except OSError as error:
            raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
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


def check_given(*, models: Sequence[Path | None], ngram: Path | None) -> None:
    """Check that files exist, before slow imports. None is not checked.

    models: directories, or GGUF files. Raises ModelLoadError and ConfigError.
    """
    for path in models:
        if path is not None and not path.exists():
            check_directory(path)
    if ngram is not None and not ngram.exists():
        raise ConfigError(f"n-gram model {ngram} does not exist")


def check_is_file(path: Path, *, may_be_directory: bool = False) -> None:
    """Raise ModelLoadError for a pipe, device or socket, which could be read without end.

    A missing file passes.
    """
    if path.exists() and not path.is_file() and not (may_be_directory and path.is_dir()):
        raise ModelLoadError(f"{path} is not a file")


def check_is_no_pointer(file: Path) -> None:
    """Raise ModelLoadError for a file whose content Git LFS has not downloaded."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_POINTER))
    except OSError:  # the code that reads the whole file next reports the error
        return
    if start == _POINTER:
        raise ModelLoadError(
            f"{file} is a pointer of Git LFS, not the file itself: run `git lfs pull` in "
            f"{file.parent}"
        )


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from a model directory. Raises ModelLoadError."""
    check_is_file(path / name)
    check_is_no_pointer(path / name)
    try:
        data = json.loads((path / name).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ModelLoadError(f"{path / name} is nested too deeply") from error
    except FileNotFoundError as error:
        what = "not a model directory"
        if (path / "adapter_config.json").is_file():
            what = "it holds a LoRA adapter, without the model that the adapter belongs to"
        raise ModelLoadError(f"{path} has no {name}: {what}") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot read {name}: {error}") from error
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path}: {name} must be a JSON object")
    return data
