"""Progress output of measurements, and the folder that they write to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from diffuspec.core.errors import ConfigError

Advance: TypeAlias = Callable[[str], None]  # takes a description of what has just ended


def make_folder(folder: Path) -> None:
    """Create a writable folder. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        is_file = isinstance(error, FileExistsError)
        reason = "it is a file" if is_file else error.strerror or str(error)
        raise ConfigError(f"cannot write into {folder}: {reason}") from error


@contextlib.contextmanager
def progress(total: int) -> Iterator[Advance]:
    """Show a bar on stderr. It is drawn between measurements, never during one."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("warm-up", total=total)
        progress.refresh()

        def advance(description: str) -> None:
            progress.update(task, advance=1, description=description, refresh=True)

        yield advance
