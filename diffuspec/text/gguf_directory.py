"""A GGUF file as a model directory: all but weights is written to a cache, once per file.

The directory is like any model directory, but has a link to the file instead of safetensors.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ModelLoadError
from diffuspec.text.directory import cache_directory

WEIGHTS = "weights.gguf"

_SUFFIX = ".gguf"
_FORM = 2  # version of the directory's format: other versions are not used


def model_directory(path: Path) -> Path:
    """Return the model directory of a GGUF file; other paths unchanged.

    Raises ModelLoadError for a file that cannot be read.
    """
    if path.suffix.lower() != _SUFFIX or path.is_dir():
        return path
    if not path.is_file():
        raise ModelLoadError(f"{path} does not exist")
    folder = cache_directory() / "gguf" / _digest(path)
    if not folder.is_dir():
        _write(path, folder)
    return folder


def _digest(path: Path) -> str:
    facts = path.stat()
    about = (_FORM, str(path.resolve()), facts.st_size, facts.st_mtime_ns)
    return hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()


def _write(path: Path, folder: Path) -> None:
    """Write the directory, which appears when it is complete. Raises ModelLoadError."""
    # Imported here because they import torch, which most readers of a directory do not need.
    from diffuspec.text.gguf_file import inspect_gguf
    from diffuspec.text.gguf_tokenizer import save_tokenizer

    file = inspect_gguf(path)
    fresh = folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        save_tokenizer(file, fresh)
        _write_json(fresh / "config.json", file.model_config())
        _write_json(fresh / "generation_config.json", {"eos_token_id": file.stop_ids or None})
        (fresh / WEIGHTS).symlink_to(path.resolve())
        _publish(fresh, folder)
    except OSError as error:
        raise ModelLoadError(
            f"{path}: cannot write {folder}: {error.strerror}; XDG_CACHE_HOME names another folder"
        ) from error
    finally:
        if fresh != folder:
            shutil.rmtree(fresh, ignore_errors=True)


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _publish(fresh: Path, folder: Path) -> None:
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was first
            raise
