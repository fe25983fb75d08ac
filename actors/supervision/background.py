"""Background tasks, and the logging of problems that do not end them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from diffuspec.core.errors import DiffuspecError

logger = logging.getLogger(__name__)

T = TypeVar("T")


def in_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task. An error that ends it is logged as critical."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_error)
    return task


async def first_of(*works: Coroutine[Any, Any, T]) -> T:
    """Return the result of the first to end, or raise its error; cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()


def log_problem(what: str, error: Exception) -> None:
    """Log an error that the caller survives, with a traceback unless it is a DiffuspecError."""
    trace = None if isinstance(error, DiffuspecError) else error
    logger.warning("%s: %s", what, error, exc_info=trace)


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("%s has ended with an error", task.get_name(), exc_info=error)
