"""GrammarQueue: compiles formats of structured output in a thread, before their requests start."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from diffuspec.core.errors import OverloadedError
from diffuspec.core.params import StructuredOutput
from diffuspec.text.grammars import Grammars


class GrammarQueue:
    """Compiles one format at a time; at most `max_forms` are waiting or being compiled."""

    def __init__(self, max_forms: int) -> None:
        self._max_forms = max_forms
        self._num_forms = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    async def compile(self, grammars: Grammars, form: StructuredOutput) -> None:
        """Compile and try a format that `grammars` does not have yet.

        Raises InvalidRequestError for an unusable format, OverloadedError while too many wait.
        """
        if grammars.is_compiled(form):
            return
        if self._num_forms >= self._max_forms:
            raise OverloadedError(f"{self._max_forms} grammars wait to be compiled already")
        self._num_forms += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, grammars.admit, form)
        finally:
            self._num_forms -= 1

    def close(self) -> None:
        """Wait for the format that is being compiled, then stop the thread."""
        self._thread.shutdown()
