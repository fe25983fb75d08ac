"""Tasks that run until they are cancelled, and problems that do not end them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from diffuspec.core.errors import DiffuspecError

logger = logging.getLogger(__name__)


def in_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task; if an error ends it, log that at level critical."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_error)
    return task


def log_problem(what: str, error: Exception) -> None:
    """Log an error that is survived, with a traceback unless it is a DiffuspecError."""
    trace = None if isinstance(error, DiffuspecError) else error
    logger.warning("%s: %s", what, error, exc_info=trace)


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("%s has ended with an error", task.get_name(), exc_info=error)
