"""What goes wrong, as a user sees it: one line on stderr and an exit code, no traceback."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from diffuspec.core.errors import (
    DiffuspecError,
    OverloadedError,
    RequestCancelledError,
    WorkerError,
)

EXIT_FAILURE = 1  # something failed while it ran
EXIT_USAGE = 2  # the input or the configuration is wrong; click's own code for it
EXIT_INTERRUPTED = 130  # Ctrl-C, as shells have it

_FAILURES = (WorkerError, OverloadedError, RequestCancelledError)


class Commands(TyperGroup):
    """A group of commands whose errors and warnings become lines on stderr."""

    def invoke(self, ctx: Any) -> Any:
        with reported(), warnings_shown():
            return super().invoke(ctx)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turn errors into a line on stderr and an exit code."""
    try:
        yield
    except DiffuspecError as error:
        _print(str(error))
        code = EXIT_FAILURE if isinstance(error, _FAILURES) else EXIT_USAGE
        raise typer.Exit(code) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # nobody reads on: typer's affair
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        _print(where + (error.strerror or str(error)))
        raise typer.Exit(EXIT_FAILURE) from error
    except KeyboardInterrupt:
        typer.echo(err=True)  # leave the line with ^C on it
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)


@contextlib.contextmanager
def warnings_shown() -> Iterator[None]:
    """Show what the library logs as a warning."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("diffuspec")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
