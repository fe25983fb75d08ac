"""The base of all commands: help, one-line errors, warnings, exit codes.

0    success
1    a failure while running, or a result that is not as promised (a token differs)
2    a wrong option, prompt, configuration or model
130  Ctrl-C
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Annotated, Any, NoReturn, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from diffuspec.cli.signals import EXIT_INTERRUPTED, report_interrupt
from diffuspec.core.errors import (
    ConfigError,
    DiffuspecError,
    OverloadedError,
    RequestCancelledError,
    WorkerError,
)
from diffuspec.core.vllm_words import ALIASES, HINTS
from diffuspec.telemetry.logs import stages

N = TypeVar("N", int, float)

EXIT_FAILURE = 1
EXIT_USAGE = 2

_FAILURES = (WorkerError, OverloadedError, RequestCancelledError)
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer exports only this subclass


class Command(TyperCommand):
    """A command that prints errors and warnings as lines on stderr."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        _run(super().main, *args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _warnings_shown(), _full_disk_named(ctx.params.get("out")):
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def make_parser(self, ctx: Any) -> Any:
        """Add vLLM's names of options, which the help does not show."""
        parser = super().make_parser(ctx)
        options = {name: param for param in self.get_params(ctx) for name in param.opts}
        for alias, name in ALIASES.items():
            if name in options and alias not in options:
                option = copy(options[name])
                option.opts, option.secondary_opts = [alias], []
                option.add_to_parser(parser, ctx)
        return parser


class Brief(Command):
    """A command whose help shows its usual options, and all of them by --help-all (`HelpAll`).

    `usual` holds the names of their parameters.
    """

    usual: frozenset[str] = frozenset()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the usual options, or of all."""
        params: list[Any] = self.params
        rare = [
            param
            for param in params
            if not ctx.meta.get(_SHOWS_ALL) and param.name not in self.usual and not param.hidden
        ]
        for param in rare:
            param.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for param in rare:
                param.hidden = False


def brief(*usual: str, base: type[Command] = Command) -> type[Command]:
    """Return a kind of command whose help shows only these parameters; see `Brief`."""
    return type("BriefCommand", (Brief, base), {"usual": frozenset(usual)})


_SHOWS_ALL = f"{__name__}.shows_all"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_SHOWS_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", callback=_show_all, is_eager=True, help="Show all options and exit."
    ),
]


class Server(Command):
    """A command that configures logging itself and prints no extra warning lines."""

    def invoke(self, ctx: Any) -> Any:
        return TyperCommand.invoke(self, ctx)


class Commands(TyperGroup):
    """A group of commands that print errors as lines on stderr."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        _run(super().main, *args, **options)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def parse_numbers(option: str, given: str, kind: Callable[[str], N]) -> list[N]:
    """Return the positive numbers of an option, separated by commas. Raises ConfigError."""
    try:
        numbers = [kind(one) for one in given.split(",") if one.strip()]
    except ValueError as error:
        raise ConfigError(f"{option} must be numbers separated by commas, got {given!r}") from error
    if not all(0 < one <= 10_000 for one in numbers):
        raise ConfigError(f"{option} must be above 0 and at most 10000, got {given!r}")
    return numbers


def _without_types(params: Sequence[Any]) -> list[Any]:
    """Make help show `--quiet` and `PROMPT` instead of `--quiet <bool>` and `PROMPT <str>`."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type_rich = _no_type
    return list(params)


def _no_type(ctx: object) -> str:
    return ""


def _run(run: Callable[..., Any], *args: Any, **options: Any) -> NoReturn:
    """Call typer's main, and exit with the code for its result or error."""
    options["standalone_mode"] = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print "?" for characters that the encoding lacks
            stream.reconfigure(errors="replace")
    try:
        code = run(*args, **options) or 0
    except _UsageError as error:
        code = _report_usage(error)
    except DiffuspecError as error:
        _print_error(str(error))
        code = EXIT_FAILURE if isinstance(error, _FAILURES) else EXIT_USAGE
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _print_error(where + (error.strerror or str(error)))
        code = EXIT_FAILURE
    if code == EXIT_INTERRUPTED:  # typer turns KeyboardInterrupt into this code
        report_interrupt()
    sys.exit(code)


def _report_usage(error: Any) -> int:
    """Print a usage error and the command that shows the help. Return 2."""
    if type(error).__name__ != "NoArgsIsHelpError":  # otherwise typer has already printed the help
        help_of = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
        _print_error(_describe(error) + help_of)
    return EXIT_USAGE


def _describe(error: Any) -> str:
    """Return a usage error's message without pydantic's own phrases, or what to do instead."""
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    if hint := HINTS.get(getattr(error, "option_name", "")):
        return f"{error.option_name} is not an option of this command: {hint}"
    found = re.fullmatch(r"Invalid value for '(.+)': Input should be (.+?)(, unable .+)?", message)
    if found is None:
        return f"{message[:1].lower()}{message[1:]}"
    [problem, *_] = error.__cause__.errors()
    expected = found[2].replace("a valid integer", "an integer").replace("a valid ", "a ")
    return f"{found[1]} must be {expected}, got {problem['input']!r:.80}"


def _print_error(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)


@contextlib.contextmanager
def _full_disk_named(out: object) -> Iterator[None]:
    """Give the error of a full disk, which names no file, the name of a command's output."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT) and out:
            error.filename = str(out)
        raise


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """Print warnings logged by our packages on stderr, and on a terminal what takes long."""
    warnings = _line_handler("warning: %(message)s", logging.WARNING)
    shown = [(logging.getLogger(name), warnings) for name in ("diffuspec", "actors", "deploy")]
    if is_terminal(sys.stderr):
        shown.append((stages, _line_handler("%(message)s ...", logging.INFO)))
        stages.setLevel(logging.INFO)
    for logger, handler in shown:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, handler in shown:
            logger.removeHandler(handler)


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def _line_handler(form: str, level: int) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    handler.setLevel(level)
    return handler
