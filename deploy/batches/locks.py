"""A batch's lock on its output, which the system frees when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from diffuspec.core.errors import ConfigError


@contextlib.contextmanager
def locked(path: Path, output: Path) -> Iterator[BinaryIO]:
    """Open a file, made if it is not there, to read and append, for one process at a time.

    Raises ConfigError, which names `output`, for a folder or a device, and at once if another
    process has it.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"the output must be a file; {output} is none")
    try:
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(f"cannot write the output {output}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except BlockingIOError:
            is_ours = False
        except OSError as error:
            raise ConfigError(f"cannot lock the output {output}: {error.strerror}") from error
        if not is_ours:  # locked, or replaced by the process that had locked it
            raise ConfigError(f"the output {output} is in use by another batch")
        file.seek(0)
        yield file
