"""A trial helper whose forms do what they are named for, besides those that it really tries.

Native code that is not known to be deadly can do all of that; what is known is refused before.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from diffuspec.core.params import StructuredOutput
from diffuspec.text import trial_helper
from diffuspec.text.grammars import Grammars

COMMAND = (sys.executable, "-m", "tests.support.deadly_helper")

CRASHES = StructuredOutput(regex="crashes")
SPINS = StructuredOutput(regex="spins")
FILLS_MEMORY = StructuredOutput(regex="fills memory")
ABORTS = StructuredOutput(regex="aborts")
FAILS = StructuredOutput(regex="fails")
WAITS = StructuredOutput(regex="waits")


def waits_once(file: Path) -> StructuredOutput:
    """Return a form whose trial writes its process id to a file and waits; later trials pass."""
    return StructuredOutput(regex=str(file))


class DeadlyGrammars(Grammars):
    """Does what forms are named for."""

    def admit(self, form: StructuredOutput) -> None:
        if form == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        elif form == FILLS_MEMORY:
            bytearray(2**28)
        elif form == ABORTS:
            os.abort()
        elif form == FAILS:
            raise ZeroDivisionError
        elif form == WAITS:
            signal.pause()
        elif form.regex and form.regex.startswith("/") and not Path(form.regex).exists():
            file = Path(form.regex)
            file.with_suffix(".new").write_text(str(os.getpid()))
            file.with_suffix(".new").rename(file)  # whole as soon as it exists
            signal.pause()
        while form == SPINS:
            pass
        super().admit(form)


if __name__ == "__main__":
    vars(trial_helper)["Grammars"] = DeadlyGrammars
    trial_helper.main()
