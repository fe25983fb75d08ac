"""Reading a prompt: from the argument, a file, or standard input."""

from __future__ import annotations

from pathlib import Path

import typer

from diffuspec.core.errors import InvalidRequestError

_STDIN = "-"


def read_prompt(argument: str | None, file: Path | None) -> str:
    """Return the prompt, for a file or stdin without byte order mark and last newline.

    Raises InvalidRequestError when it is given twice, blank, unreadable or not UTF-8.
    """
    if argument is not None and file is not None:
        raise InvalidRequestError("give the prompt as the argument or with --file, not both")
    if file is not None:
        text = _decode(_read_file(file), str(file))
    elif argument is not None and argument != _STDIN:
        text = argument
    else:
        text = _decode(_read_stdin(), "standard input")
    if not text.strip():
        raise InvalidRequestError("the prompt is empty")
    return text


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"cannot read {file}: {error.strerror}") from error


def _read_stdin() -> bytes:
    try:
        stdin = typer.get_binary_stream("stdin")
    except RuntimeError as error:  # it is closed
        raise InvalidRequestError("no prompt: standard input is closed") from error
    if stdin.isatty():
        typer.echo("Type the prompt, then Ctrl-D on an empty line.", err=True)
    return stdin.read()


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{source} is not UTF-8 text: {error}") from error
