"""Work that is to go on until it is cancelled, whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from diffuspec.core.errors import DiffuspecError

logger = logging.getLogger(__name__)


def keep(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start work; should an error end it, the log says so."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def log_problem(what: str, error: Exception) -> None:
    """Say what went wrong; where it came from too, if it is no error of ours."""
    trace = None if isinstance(error, DiffuspecError) else error
    logger.warning("%s: %s", what, error, exc_info=trace)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("%s has ended, and nobody does its work", task.get_name(), exc_info=error)
