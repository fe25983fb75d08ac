"""The state of a run on stderr: a line that changes, or without a terminal a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console

_EVERY_SECONDS = 30.0  # without a terminal


@contextlib.contextmanager
def progress(name: str, console: Console) -> Iterator[Callable[[str], None]]:
    """Enter with a function that shows the state of a run of this name."""
    if console.is_terminal:
        with console.status(name) as status:
            yield lambda text: status.update(f"{name}: {text}")
        return
    last = -_EVERY_SECONDS

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_SECONDS:
            last = time.monotonic()
            console.print(f"{name}: {text}", soft_wrap=True, highlight=False)

    yield say
