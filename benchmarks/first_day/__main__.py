"""`python -m benchmarks.first_day`: enters namespaces of its own, and spends the day there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.first_day.day import spend_day, table
from benchmarks.first_day.place import checkout_place, wheel_place
from benchmarks.first_day.typed import PAGES, ROOT

_INSIDE = "--inside"
_HOME = "/tmp/home"
# An empty /tmp, a network with nothing but the loopback, and processes that end with the first.
_SPACES = ("--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
_ENTER = 'mount -t tmpfs -o mode=1777 tmpfs /tmp && ip link set lo up && mkdir "$HOME" && exec "$@"'


def run(
    directory: Annotated[Path, typer.Argument(help="Folder with the wheel, of `make release`.")],
    page: Annotated[str, typer.Option(help="Only pages whose name has this text.")] = "",
    place: Annotated[str, typer.Option(help="Only this place: wheel or checkout.")] = "",
    inside: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Type everything that the pages say, and print a table. Exits with 1 if something fails."""
    [wheel] = directory.absolute().glob("*.whl")
    if not inside:
        _enter_namespaces()
    pages = [path for path in PAGES if page in path.name]
    makers = {"wheel": wheel_place, "checkout": checkout_place}
    outcomes = {
        name: spend_day(make(wheel), pages) for name, make in makers.items() if place in name
    }
    print(table(outcomes))
    if any(outcome.has_failed for column in outcomes.values() for outcome in column):
        raise typer.Exit(1)


def _enter_namespaces() -> None:
    """Run this command again, inside. Does not return."""
    for path in (ROOT, Path(sys.executable)):
        if path.is_relative_to("/tmp"):
            sys.exit(f"{path} would be hidden by an empty /tmp: use a checkout elsewhere")
    spaces = _SPACES if os.geteuid() == 0 else (*_SPACES, "--map-root-user")
    mine = (sys.executable, "-m", "benchmarks.first_day", _INSIDE, *sys.argv[1:])
    command = ("unshare", *spaces, "sh", "-c", _ENTER, "sh", *mine)
    env = {"HOME": _HOME, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    os.execvpe("unshare", command, env)


app = typer.Typer(add_completion=False)
app.command()(run)

if __name__ == "__main__":
    app()
