"""`diffuspec model explain`: how a model directory is served, and where that is from.

A section is a function of `Directory`; `SECTIONS` has them in the order in which they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

EXAMPLES = """[bold]Examples[/bold]

  diffuspec model explain models/Qwen3-8B
  diffuspec model explain models/Qwen3-8B --tool-call-parser none
"""

Target = Annotated[Path, typer.Argument(metavar="DIR", help="A model directory.")]
ToolCalls = Annotated[str | None, typer.Option("--tool-call-parser", metavar="NAME")]
Reasoning = Annotated[str | None, typer.Option("--reasoning-parser", metavar="NAME")]
Generation = Annotated[str | None, typer.Option("--generation-config", metavar="auto|vllm|DIR")]

Rows: TypeAlias = Mapping[str, str]
_WIDTH = 18
_VARIABLES = ("enable_thinking", "reasoning_effort", "documents", "builtin_tools")


@dataclass(frozen=True, slots=True)
class Directory:
    """A model directory, and what `diffuspec serve` would be told besides."""

    path: Path
    tokenizer: Any
    settings: Mapping[str, str]


def run(
    target: Target,
    tool_call_parser: ToolCalls = None,
    reasoning_parser: Reasoning = None,
    generation_config: Generation = None,
) -> None:
    """Tell how a model is served: what ends its answers, its chats, calls, reasoning, defaults.

    Weights are not read.
    """
    from diffuspec.text.tokenizer import load_tokenizer

    given = {
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
        "generation_config": generation_config,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    directory = Directory(target, load_tokenizer(target), settings)
    found = [(title, describe(directory)) for title, describe in SECTIONS]  # all, or an error
    for title, rows in found:
        typer.echo(title)
        for name, value in rows.items():
            typer.echo(f"  {name:<{_WIDTH}}{value}")


def _tokens(directory: Directory) -> Rows:
    from diffuspec.text.endings import read_eos_token_ids

    tokenizer = directory.tokenizer
    ends = read_eos_token_ids(directory.path, tokenizer)
    named = (f"{one} {tokenizer.convert_ids_to_tokens(one)}" for one in ends)
    return {
        "token ids": str(max(tokenizer.get_vocab().values()) + 1),
        "answers end at": ", ".join(named) or "nothing: they go on to their longest length",
    }


def _template(directory: Directory) -> Rows:
    from diffuspec.text.chat_template import takes_parts_only, template_text

    template = template_text(directory.tokenizer)
    if not template:
        return {"form": "none: chats are refused, texts are continued"}
    variables = [name for name in _VARIABLES if name in template]
    return {
        "content": "parts" if takes_parts_only(directory.tokenizer) else "one text",
        "tools": "taken" if "tools" in template else "refused",
        "variables": ", ".join(variables) or "none that are known",
    }


def _conventions(directory: Directory) -> Rows:
    from diffuspec.serve.conventions import read_conventions
    from diffuspec.serve.settings import ServeSettings

    settings = ServeSettings(**directory.settings)  # type: ignore[arg-type]
    found = read_conventions(directory.path, directory.tokenizer, settings)
    sampling = ", ".join(f"{name} {value}" for name, value in found.sampling.items())
    longest = "the context's" if found.max_tokens is None else f"{found.max_tokens} tokens"
    return {
        "tool calls": found.tools,
        "reasoning": found.reasoning,
        "sampling": sampling or "OpenAI's: temperature 1.0",
        "longest answer": longest,
    }


SECTIONS: tuple[tuple[str, Callable[[Directory], Rows]], ...] = (
    ("Tokens", _tokens),
    ("Chat template", _template),
    ("Service", _conventions),
)
