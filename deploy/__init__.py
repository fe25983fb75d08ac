"""What starts things: reads the environment and YAML, once.

Its commands are modules (`python -m deploy.demo`) that import much before they can handle Ctrl-C.
Until then one line is printed in place of a traceback.
"""

from __future__ import annotations

import sys
from types import TracebackType

from diffuspec.cli import report_interrupt

_print_exception = sys.excepthook


def _report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        report_interrupt()
    else:
        _print_exception(kind, error, traceback)


sys.excepthook = _report
