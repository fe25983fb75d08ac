"""The target's files that say how text becomes tokens, for ingresses on nodes without them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from diffuspec.core.errors import WorkerError
from diffuspec.text.directory import cache_directory
from diffuspec.text.gguf_directory import model_directory

_PATTERNS = ("*.json", "*.jinja", "*/*.jinja")
_WEIGHTS = ".index.json"  # the suffix of an index of weights in several files
_PAUSE_SECONDS = 0.5


def read_files(path: Path) -> dict[str, bytes]:
    """Return what a model directory or a GGUF file has besides weights, by relative path.

    Raises ModelLoadError for a GGUF file that cannot be read.
    """
    folder = model_directory(path)
    files = sorted(file for pattern in _PATTERNS for file in folder.glob(pattern))
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if not file.name.endswith(_WEIGHTS)
    }


async def fetch_files(ask: Callable[[], Awaitable[Mapping[str, bytes]]]) -> Path:
    """Wait until `ask` returns files; return a directory of the user's cache with them.

    WorkerErrors of `ask` are survived.
    """
    while True:
        with contextlib.suppress(WorkerError):
            if files := await ask():
                return await asyncio.to_thread(_keep, files)
        await asyncio.sleep(_PAUSE_SECONDS)


def _keep(files: Mapping[str, bytes]) -> Path:
    """Write the files, unless an earlier process has; the directory appears when it is whole."""
    digest = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()
    folder = cache_directory() / "targets" / digest
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fresh = Path(name) / "target"
        for file, content in files.items():
            (fresh / file).parent.mkdir(parents=True, exist_ok=True)
            (fresh / file).write_bytes(content)
        with contextlib.suppress(OSError):  # another process was first
            os.rename(fresh, folder)
    return folder
