"""Commands of `deploy` and `actors`, the packages beside the library that use Ray.

A command is imported when it is called, so the others work without Ray.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from typer import Context

from diffuspec.core.errors import ConfigError

_BESIDE = Path(__file__).parents[1] / "_ray"  # the packages' folder in a wheel
_CHECKOUT = Path(__file__).parents[2]  # their folder in an editable installation of a checkout

# The imported command has its own options and --help.
FORWARDED: dict[str, Any] = {
    "context_settings": {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
    "add_help_option": False,
}

MODULES = {
    "batch": "deploy.batch",
    "ray serve": "deploy.serve",
    "ray draft-pool": "deploy.draft_pool",
}


def batch(context: Context) -> None:
    """Answer every row of a file, and write the results to another."""
    _forward("batch", context)


def serve(context: Context) -> None:
    """Serve OpenAI's API on a Ray cluster of its own until Ctrl-C or SIGTERM."""
    _forward("ray serve", context)


def draft_pool(context: Context) -> None:
    """Serve drafts by draft servers on a Ray cluster, as many as there is work for."""
    _forward("ray draft-pool", context)


def _forward(name: str, context: Context) -> None:
    """Run a command of another package. Raises ConfigError without Ray."""
    if folder := _folder():
        sys.path.insert(0, folder)
        inherited = os.environ.get("PYTHONPATH", "")  # the cluster's processes inherit it too
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, inherited]))
    try:
        app = importlib.import_module(MODULES[name]).app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise ConfigError(f"diffuspec {name} needs Ray: pip install 'diffuspec[ray]'") from None
    app(args=context.args, prog_name=context.command_path)


def _folder() -> str | None:
    """Return the folder from which the packages are imported by their own names."""
    if _BESIDE.is_dir():
        return str(_BESIDE)
    return str(_CHECKOUT) if (_CHECKOUT / "deploy" / "batch.py").is_file() else None
