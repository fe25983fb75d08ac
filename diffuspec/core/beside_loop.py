"""Runs a coroutine to its end even if an event loop is already running, as in a notebook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def is_in_loop() -> bool:
    """Return whether an event loop is running in this thread, so that no other can."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def call_beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that runs an event loop; in another thread if one is running here."""
    if not is_in_loop():
        return function(*args, **kwargs)
    with ThreadPoolExecutor(1, "beside") as threads:
        return threads.submit(function, *args, **kwargs).result()


def run_beside(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a runner in its own thread, and wait for it.

    An interrupt, for example of a notebook, cancels the coroutine and is raised once that has
    ended.
    """
    answered: Future[T] = Future()
    tasks: list[asyncio.Task[Any]] = []
    is_interrupted = threading.Event()

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        if is_interrupted.is_set():
            task.cancel()
        return await work

    def run() -> None:
        try:
            answered.set_result(runner.run(watched()))
        except BaseException as error:
            answered.set_exception(error)

    thread = threading.Thread(target=run, name="generate")
    try:
        thread.start()
        return answered.result()
    finally:
        is_interrupted.set()
        for task in tasks:
            if not answered.done():
                task.get_loop().call_soon_threadsafe(task.cancel)
        thread.join()
