"""The `diffuspec` command. Imports nothing by itself, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import signal
import sys

__all__ = ["EXIT_INTERRUPTED", "main", "report_interrupt"]

EXIT_INTERRUPTED = 128 + signal.SIGINT  # the convention of shells


def main() -> None:
    """Run the command line of this process."""
    try:
        from diffuspec.cli.app import app

        app()
    except KeyboardInterrupt:  # Ctrl-C while modules were imported
        report_interrupt()
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the interpreter's own end


def report_interrupt() -> None:
    """Print one line on stderr, below the ^C that a terminal shows."""
    newline = "\n" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{newline}interrupted\n")
    sys.stderr.flush()
