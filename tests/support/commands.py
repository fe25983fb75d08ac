"""The commands of `diffuspec`, by their names."""

from __future__ import annotations

from typing import Any

import typer

from diffuspec.cli.app import app


def all_commands() -> dict[str, Any]:
    """Return each command by its name, as `serve` or `keys add`."""
    group: Any = typer.main.get_command(app)
    return {
        f"{name} {inner}".strip(): command
        for name, outer in group.commands.items()
        for inner, command in _commands(outer).items()
    }


def _commands(outer: Any) -> dict[str, Any]:
    """Return the commands of a group by name, "" for one that runs without a name."""
    inner = getattr(outer, "commands", {"": outer})
    return {"": outer, **inner} if getattr(outer, "invoke_without_command", False) else inner


def options_of(*names: str) -> set[str]:
    """Return the options that one of these commands has, as `--target`."""
    commands = all_commands()
    return {option for name in names for param in commands[name].params for option in param.opts}
