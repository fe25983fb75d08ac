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
        for inner, command in getattr(outer, "commands", {"": outer}).items()
    }


def options_of(*names: str) -> set[str]:
    """Return the options that one of these commands has, as `--target`."""
    commands = all_commands()
    return {option for name in names for param in commands[name].params for option in param.opts}
