"""Directories whose tokenizer and templates are tried, within limits, before they are used here.

A tokenizer's rules for texts, and templates, can loop or fill the memory. They are tried on samples
in a separate process; the user's cache remembers directories that passed, by a hash of their files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from diffuspec.core.errors import ModelLoadError
from diffuspec.text import tokenizer_trial
from diffuspec.text.directory import cache_directory
from diffuspec.text.tokenizer_trial import tried_files

_FORM = 1  # version of the trial: a new version tries all directories again
_CPU_SECONDS = 5
_MEMORY_BYTES = 2 * 2**30
_WALL_SECONDS = 60  # for a trial on a busy machine
_MAX_FILE_BYTES = 2**30
_OWN = Path(__file__).parents[1]
# One thread: a thread's stack and heap are large in the address space, which is limited.
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def try_directory(path: Path) -> None:
    """Try the tokenizer and the chat templates of a directory, unless the same ones were tried.

    Raises ModelLoadError if they take too much time or memory, or fail on ordinary texts.
    """
    if path.resolve().is_relative_to(_OWN):  # a directory of the embedded pair
        return
    digest = _digest(path)
    # Without a cache, or a home directory for it, it is tried again.
    with contextlib.suppress(OSError, RuntimeError):
        if _mark(digest).exists():
            return
    _try(path)
    with contextlib.suppress(OSError, RuntimeError):
        _mark(digest).parent.mkdir(parents=True, exist_ok=True)
        _mark(digest).touch()


def _mark(digest: str) -> Path:
    """Return the file whose existence says that a directory passed.

    Raises RuntimeError if the user has no home directory.
    """
    return cache_directory() / "tokenizers" / digest


def _digest(path: Path) -> str:
    """Return a hash of the tried files and of the versions of the packages that run them."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((_FORM, version("tokenizers"), version("jinja2"))).encode())
    for file in tried_files(path):
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ModelLoadError(f"{file} has more than {_MAX_FILE_BYTES} bytes")
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "blake2b").digest()
        digest.update(repr(str(file.relative_to(path))).encode() + content)
    return digest.hexdigest()


def _try(path: Path) -> None:
    # -S: without the programs that packages run at the start of Python, which take most of the time
    command = [sys.executable, "-S", "-P", tokenizer_trial.__file__, str(path.resolve())]
    command += [str(_CPU_SECONDS), str(_MEMORY_BYTES)]
    packages = os.pathsep.join(filter(None, sys.path))
    try:
        trial = subprocess.run(
            command,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": packages},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
        )
        output, code, said = trial.stdout, trial.returncode, trial.stderr
    except subprocess.TimeoutExpired as error:
        output, code, said = error.stdout or b"", -signal.SIGALRM, b""
    lines = [json.loads(line) for line in output.splitlines() if line.endswith(b"}")]
    file = path / next((line["file"] for line in reversed(lines) if "file" in line), "")
    last = lines[-1] if lines else {}
    if "refused" in last:
        raise ModelLoadError(f"{file} is refused: {last['refused']}")
    if "done" not in last:
        raise ModelLoadError(f"{file} is refused: {_reason(code, said)}")


def _reason(code: int, said: bytes) -> str:
    """Return why a trial did not end by itself. `said`: its standard error."""
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"a trial of it took more than {_CPU_SECONDS} seconds of computing"
    if code == -signal.SIGALRM:
        return f"a trial of it took more than {_WALL_SECONDS} seconds"
    if code == -signal.SIGABRT:
        return f"a trial of it needed more than {_MEMORY_BYTES // 2**20} MiB of memory"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    return f"a trial of it failed with the status {code}: {last:.200}"
