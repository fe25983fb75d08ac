"""The `diffuspec` command. Imports nothing itself, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import signal
import sys

from diffuspec.cli.signals import EXIT_INTERRUPTED, report_interrupt


def main() -> None:
    """Run the command line of this process."""
    try:
        from diffuspec.cli.app import app

        app()
    except KeyboardInterrupt:  # Ctrl-C while modules are being imported
        report_interrupt()
        sys.exit(EXIT_INTERRUPTED)
    finally:
        # prevents a traceback during interpreter shutdown
        signal.signal(signal.SIGINT, signal.SIG_DFL)
