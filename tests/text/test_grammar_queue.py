"""A grammar queue compiles one form at a time, and refuses those beyond its limit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from diffuspec.core.errors import OverloadedError
from diffuspec.core.params import StructuredOutput
from diffuspec.text.grammar_queue import GrammarQueue

NEW, KNOWN = StructuredOutput(regex="a+"), StructuredOutput(regex="b+")


class SlowGrammars:
    """Know one form; compile others once they may."""

    def __init__(self) -> None:
        self.may_compile = threading.Event()
        self.compiled: list[StructuredOutput] = []

    def is_compiled(self, form: StructuredOutput) -> bool:
        return form == KNOWN

    def admit(self, form: StructuredOutput) -> None:
        self.may_compile.wait()
        self.compiled.append(form)


async def test_a_form_is_refused_while_too_many_wait_and_taken_afterwards():
    grammars: Any = SlowGrammars()
    queue = GrammarQueue(max_forms=2)
    waiting = [asyncio.create_task(queue.compile(grammars, NEW)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="2 grammars wait to be compiled already"):
        await queue.compile(grammars, NEW)
    await queue.compile(grammars, KNOWN)  # nothing to compile
    grammars.may_compile.set()
    await asyncio.gather(*waiting)
    await queue.compile(grammars, NEW)
    queue.close()
    assert grammars.compiled == [NEW] * 3
