"""`diffuspec generate`: answer one prompt."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuspec.cli import display, engine_config, options
from diffuspec.cli.command import HelpAll
from diffuspec.cli.parameters import NOTHING_GIVEN, Given
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams, StructuredOutput
from diffuspec.pairs.tiny import TARGET
from diffuspec.telemetry.trace import tracing

if TYPE_CHECKING:
    from diffuspec.core.types import Prompt

logger = logging.getLogger(__name__)

EXAMPLES = """[bold]Examples[/bold]

  diffuspec generate "What is the capital of France?"
  diffuspec generate "Hello" --target DIR --drafter-kind pld
"""
USUAL = (
    *("prompt", "file", "system", "pair", "target", "drafter", "drafter_kind"),
    *("max_tokens", "temperature", "json", "quiet", "help_all"),
)

PromptText = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt. If it is omitted or -, stdin is read."),
]
PromptFile = Annotated[
    Path | None, typer.Option(help="Read the prompt from a file.", metavar="FILE")
]
Chat = Annotated[
    bool,
    typer.Option(
        "--chat/--raw", help="Treat the prompt as a chat message, or as text to continue."
    ),
]
System = Annotated[
    str | None, typer.Option(help="System message at the start of the chat.", metavar="TEXT")
]

ExplainSchedule = Annotated[
    bool,
    typer.Option(
        "--explain-schedule",
        help="Write a line to stderr for each plan of the scheduler, before the answer: the "
        "candidates, best first, with their scores in tokens, and why a step has no draft.",
    ),
]


@options.takes_sampling
@options.takes_form
@options.takes_engine
@options.takes_speculation
def run(
    prompt: PromptText = None,
    file: PromptFile = None,
    chat: Chat = True,
    system: System = None,
    given: options.EngineOptions = options.NO_OPTIONS,
    sampling: Given = NOTHING_GIVEN,
    form: Given = NOTHING_GIVEN,
    speculation: Given = NOTHING_GIVEN,
    json: options.Json = False,
    quiet: options.Quiet = False,
    trace: options.Trace = None,
    explain_schedule: ExplainSchedule = False,
    help_all: HelpAll = False,
) -> None:
    """Answer one prompt with the target's own tokens, drafted by a diffusion LM."""
    structured = StructuredOutput(**form) if form else None
    how = SamplingParams(structured_output=structured, **sampling).with_seed()
    if how.logprobs is not None and not json:
        raise InvalidRequestError("--logprobs needs --json")
    settings = engine_config.compose(given, speculation)
    if not chat and settings.target.path == TARGET:
        logger.warning("the embedded target was trained on chats only; it cannot continue text")
    request = _prompt(read_prompt(prompt, file), chat, system)
    with tracing(trace) as tracer, options.open_engine(settings, given.threads, tracer) as engine:
        if explain_schedule:
            engine.on_plan = functools.partial(typer.echo, err=True)
        most = how.max_tokens
        if "max_tokens" not in sampling:
            room = engine.info.max_model_len - len(engine.encode(request))
            how = dataclasses.replace(how, max_tokens=max(min(most, room), 1))
        if json:
            completion = asyncio.run(engine.complete(request, how))
            typer.echo(display.as_json(completion))
        else:
            work = display.stream_answer(engine, request, how, at_once=explain_schedule)
            shown = asyncio.run(work)
            if not quiet:
                decides = settings.drafter is not None and settings.speculation.policy != "off"
                notes = display.notes_on(shown, most, has_drafts=decides)
                display.show_statistics(shown.stats, None if how.is_greedy else how.seed, notes)


def _prompt(text: str, chat: bool, system: str | None) -> Prompt:
    if not chat:
        if system is not None:
            raise InvalidRequestError("--system needs a chat, --raw sends none")
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


_STDIN = "-"


def read_prompt(argument: str | None, file: Path | None) -> str:
    """Return the prompt; from a file or stdin without byte order mark and final newline.

    Raises InvalidRequestError if it is given twice, blank, unreadable or not UTF-8.
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
        raise InvalidRequestError(
            "the prompt is empty: give it as the argument, with --file, or on stdin"
        )
    return text


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"cannot read {file}: {error.strerror}") from error


def _read_stdin() -> bytes:
    try:
        stdin = typer.get_binary_stream("stdin")
    except RuntimeError as error:  # stdin is closed
        raise InvalidRequestError("no prompt: standard input is closed") from error
    if stdin.isatty():
        typer.echo("Type the prompt, then Ctrl-D on an empty line.", err=True)
    return stdin.read()


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{source} is not UTF-8 text: {error}") from error
