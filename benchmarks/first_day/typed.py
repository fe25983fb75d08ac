"""What a reader of a page types: commands and programs, what each needs, and files to save.

Knows nothing of how they are run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.first_day.blocks import Block, blocks

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "serving", "usage")),
)
DEFAULT_PORT = 8000
URL = f"http://127.0.0.1:{DEFAULT_PORT}"
_PROGRAMS = ("cat", "curl", "diffuspec", "echo", "export", "make", "python", "ray", "source")
_MET = ("needs a service", "needs a checkout", "needs the roles above")  # the first day has these
_IN_CHECKOUT = re.compile(r"^(make|source) |\b(deploy|actors|benchmarks)\b")
# Commands that run until they are stopped, and what they print once they are ready.
_SERVICES: Mapping[str, str] = {
    "diffuspec serve": r"^serving ",
    "diffuspec ray serve": r"^serving ",
    "make serve": r"^serving ",
    "diffuspec draft-server": r"^drafting on ",
    "python -m deploy.grpc": r"^127\.0\.0\.1:\d+$",
}
_PORT = re.compile(r"--port (\d+)")
_DRAFTS_PORT = 7010


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, a program, or a file to save; an `obstacle` says why it is not run."""

    block: Block
    text: str
    file: str | None = None  # its name, of a file to save
    obstacle: str | None = None

    @property
    def is_program(self) -> bool:
        return self.block.language == "python" and self.file is None

    @property
    def ready(self) -> str | None:
        """The line that a service prints once it is ready, as a pattern; None of other commands."""
        found = (line for name, line in _SERVICES.items() if f"{self.text} ".startswith(f"{name} "))
        return next(found, None)

    @property
    def port(self) -> int:
        """The port of a service."""
        given = _PORT.search(self.text)
        drafts = self.text.startswith("diffuspec draft-server")
        return int(given[1]) if given else _DRAFTS_PORT if drafts else DEFAULT_PORT

    @property
    def needs_service(self) -> bool:
        return URL in self.text and self.file is None

    @property
    def needs_checkout(self) -> bool:
        needs_roles = "needs the roles above" in self.block.note  # started by modules of a checkout
        return needs_roles or _IN_CHECKOUT.search(self.text) is not None

    @property
    def is_known(self) -> bool:
        """Whether the first day can run it, or knows why not."""
        if self.obstacle is not None or self.file is not None or self.is_program:
            return True
        return self.text.split(maxsplit=1)[0] in _PROGRAMS


def typed_on(page: Path) -> list[Typed]:
    """Return what a page tells its readers to type or to save, in order."""
    return [typed for block in blocks(page) for typed in typed_in(block)]


def typed_in(block: Block) -> Iterator[Typed]:
    """Yield what a block tells its readers to type or to save."""
    clauses = block.note.split("; ") if block.note else []
    files = [clause.removeprefix("file ") for clause in clauses if clause.startswith("file ")]
    obstacles = _obstacles(clauses)
    for name in files:
        yield Typed(block, block.text, name, obstacles.get(""))
    if block.language == "bash":
        for command in _commands(block.text):
            yield Typed(block, command, obstacle=_why_not(command, obstacles))
    elif block.language == "python" and not files:
        yield Typed(block, block.text, obstacle=obstacles.get(""))


def _obstacles(clauses: Sequence[str]) -> dict[str, str]:
    """Return why commands that begin in some way are not run; those of "" are all."""
    found = {}
    for clause in clauses:
        if clause.startswith("needs ") and clause not in _MET:
            reason, _, beginning = clause.partition(": ")
            found[beginning] = reason
    return found


def _why_not(command: str, obstacles: Mapping[str, str]) -> str | None:
    return next((why for start, why in obstacles.items() if command.startswith(start)), None)


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a shell block, without comments; quotes and \\ continue a line."""
    command = ""
    for line in text.splitlines():
        command = _without_comment(f"{command}\n{line}" if command else line)
        if command.endswith("\\") or command.count("'") % 2:
            continue
        if bare := command.removesuffix("&").strip():
            yield bare
        command = ""


def _without_comment(command: str) -> str:
    for found in re.finditer(r"(^|\s)# ", command):
        before = command[: found.start()]
        if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
            return before.rstrip()
    return command
