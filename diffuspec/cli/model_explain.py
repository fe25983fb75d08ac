"""`diffuspec model explain`: how a model directory is served, and which file decides it.

Each section is a function of `Directory`; `SECTIONS` lists them in printing order.
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
  diffuspec model explain models/SDAR-1.7B-Chat-b16
  diffuspec model explain SmolLM2-135M-Instruct-Q4_K_M.gguf
  diffuspec model explain config.json --device-memory 141
"""

Target = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE.gguf|config.json",
        help="A model directory, a GGUF file, or a config.json alone, for the room in the cache.",
    ),
]
ToolCalls = Annotated[str | None, typer.Option("--tool-call-parser", metavar="NAME")]
Reasoning = Annotated[str | None, typer.Option("--reasoning-parser", metavar="NAME")]
Generation = Annotated[str | None, typer.Option("--generation-config", metavar="auto|vllm|DIR")]
Memory = Annotated[
    float | None,
    typer.Option(
        "--device-memory",
        metavar="GIB",
        min=0.1,
        help="GiB of a GPU, or of all GPUs of a target, whose cache to compute; else this machine.",
    ),
]

Rows: TypeAlias = Mapping[str, str]
_WIDTH = 18
_VARIABLES = ("enable_thinking", "reasoning_effort", "documents", "builtin_tools")


@dataclass(frozen=True, slots=True)
class Directory:
    """A model directory, and the options of `diffuspec serve` that concern it."""

    path: Path
    tokenizer: Any  # None for a drafter without one
    settings: Mapping[str, str]
    device_memory: float | None = None  # GiB


def run(
    target: Target,
    tool_call_parser: ToolCalls = None,
    reasoning_parser: Reasoning = None,
    generation_config: Generation = None,
    device_memory: Memory = None,
) -> None:
    """Print how a model is served: what ends its answers, its chats, calls, reasoning, defaults.

    Also how its weights are stored and multiplied here, though they are not read; and of a
    diffusion LM how it drafts: family, attention, blocks, mask.
    """
    from diffuspec.text.tokenizer import load_tokenizer

    given = {
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
        "generation_config": generation_config,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    drafts = _drafts(Directory(target, None, settings))
    is_config = target.name == "config.json"
    lacks_tokenizer = is_config or (bool(drafts) and not (target / "tokenizer.json").is_file())
    tokenizer = None if lacks_tokenizer else load_tokenizer(target)
    directory = Directory(target, tokenizer, settings, device_memory)
    sections = SECTIONS[:1] if lacks_tokenizer else SECTIONS
    if is_config:
        sections = (("Weights", _config_alone),)
    # prints everything or raises an error
    found = [(title, describe(directory)) for title, describe in sections]
    for title, rows in found:
        if not rows:
            continue
        typer.echo(title)
        for name, value in rows.items():
            typer.echo(f"  {name:<{_WIDTH}}{value}")


def _drafts(directory: Directory) -> Rows:
    """Describe how a diffusion LM drafts; empty for other models."""
    from diffuspec.models.loading.families import find_family, read_settings, why_refused
    from diffuspec.text.directory import read_json

    path = directory.path
    config = read_json(path, "config.json") if (path / "config.json").is_file() else {}
    if not isinstance(model_type := config.get("model_type"), str):
        return {}
    if (reason := why_refused(path, config)) is not None:
        return {"refused": reason}
    family = find_family(config)
    if family is None and config.get("diffusion_attention") is None:
        return {}
    settings = read_settings(path, config)
    name = "its own config.json's" if family is None else family.name
    layers = model_type if family is None else family.base
    rows = {
        "family": f"{name}, model type {model_type}, layers of {layers}",
        "attention": f"{settings.attention}: {_ATTENTIONS[settings.attention]}",
        "block": f"{settings.block_size} tokens" if settings.attention == "block_aligned" else "-",
        "predicts": "the token after a row's own" if settings.is_shifted else "a row's own token",
        "mask": _named(directory.tokenizer, settings.mask_token_id),
    }
    if family is not None and family.may_have_blocks:
        rows["block"] = "as drafter.block_size says, for bd3lm; else none"
    if family is not None and family.restriction is not None:
        rows["licence"] = family.restriction
    return rows


def _named(tokenizer: Any, token_id: int) -> str:
    token = None if tokenizer is None else tokenizer.convert_ids_to_tokens(token_id)
    return str(token_id) if token is None else f"{token_id} {token}"


def _weights(directory: Directory) -> Rows:
    """Describe how weights are stored and multiplied; empty for a directory without weights."""
    path = directory.path
    if path.is_dir() and not any(path.glob("*.safetensors")):
        return {}
    from diffuspec.core.errors import ModelLoadError
    from diffuspec.models.loading.backend import choose_backend
    from diffuspec.models.loading.checkpoint import inspect_checkpoint
    from diffuspec.models.loading.room import describe_room
    from diffuspec.models.loading.storage import describe_weights

    try:
        checkpoint = inspect_checkpoint(path)
        backend = choose_backend(path, "auto", "auto")
        room = describe_room(checkpoint, backend, directory.device_memory)
        return {**describe_weights(checkpoint), **room, "here": str(backend)}
    except ModelLoadError as error:
        return {"refused": str(error)}


def _config_alone(directory: Directory) -> Rows:
    """Describe the room in the cache of a model of which only config.json is there."""
    from diffuspec.models.loading.room import describe_room, inspect_path

    checkpoint = inspect_path(directory.path)
    parameters = f"{checkpoint.num_weights / 1e9:.2f} G, in bfloat16"
    return {"parameters": parameters, **describe_room(checkpoint, None, directory.device_memory)}


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
        "variables": ", ".join(variables) or "no known ones",
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


_ATTENTIONS = {
    "full": "all rows see each other",
    "block_causal": "text is causal, and a draft is one block after it",
    "block_aligned": "blocks at multiples of their size see themselves and all earlier ones",
}
SECTIONS: tuple[tuple[str, Callable[[Directory], Rows]], ...] = (
    ("Drafter", _drafts),
    ("Weights", _weights),
    ("Tokens", _tokens),
    ("Chat template", _template),
    ("Service", _conventions),
)
