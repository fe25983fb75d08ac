"""Entry points: commands that read the environment and YAML files once and start things.

`python -m deploy.demo` imports many modules before its command can handle Ctrl-C. Until then this
package reports Ctrl-C in one line instead of a traceback.
"""

from __future__ import annotations

import sys
from types import TracebackType

from diffuspec.cli.signals import EXIT_INTERRUPTED, report_interrupt

_print_exception = sys.excepthook


def _report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _print_exception(kind, error, traceback)
        return
    report_interrupt()
    sys.exit(EXIT_INTERRUPTED)


sys.excepthook = _report
