"""Runs transformers without its progress bars and reports."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and reports; convert its failures to our errors."""
    import transformers  # takes half a second

    log: Any = transformers.utils.logging
    verbosity, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if has_bars:
            log.enable_progress_bar()
