"""Excerpts of the Python standard library, to be continued line by line.

The text comes from the running interpreter, so it differs between Python versions. Modules,
not excerpts, are held out: excerpts of one module overlap.
"""

import random
import sysconfig
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipes.tiny.corpus.families import Conversation
from recipes.tiny.corpus.families.pools import scaled, words

FAMILY = "code"

_PACKAGES = words(
    "asyncio collections concurrent email html http importlib json logging multiprocessing "
    "unittest urllib wsgiref xml"
)
_REQUEST = "Continue this Python code from the module {module}:\n"
_HELD_OUT_ONE_IN = 10
_MIN_MODULE_LINES = 40
_MAX_LINE_LENGTH = 100


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    lines: tuple[str, ...]
    starts: tuple[int, ...]  # line numbers at which a function or a class starts


def module_of(drawn: Conversation) -> str:
    """The module whose source a conversation of this family continues."""
    return drawn.turns[0].split(":\n", 1)[0].rsplit(" ", 1)[1]


def is_held_out_module(name: str) -> bool:
    """Return whether excerpts of the module must not be used in training."""
    return zlib.crc32(name.encode()) % _HELD_OUT_ONE_IN == 0


def compose(rng: random.Random, size: float) -> Conversation:
    """Draw an excerpt; the answer is its next 4 lines at size 0 and up to 16 at size 1."""
    modules = _modules()
    while True:
        module = rng.choice(modules)
        num_shown = scaled(rng, 10, 20, size)
        num_next = scaled(rng, 4, 16, size)
        start = _draw_start(rng, module)
        shown = _trimmed(module.lines[start : start + num_shown])
        rest = module.lines[start + len(shown) : start + len(shown) + num_next]
        answer = "\n".join(rest).strip("\n")
        if shown and len(rest) == num_next and answer.strip() and _is_plain(shown + rest):
            turn = _REQUEST.format(module=module.name) + "\n".join(shown)
            return Conversation(FAMILY, (turn,), (answer,))


def _draw_start(rng: random.Random, module: _Module) -> int:
    if module.starts and rng.random() < 0.8:
        return rng.choice(module.starts)
    return rng.randrange(len(module.lines))


def _trimmed(lines: tuple[str, ...]) -> tuple[str, ...]:
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    return lines[:end]


def _is_plain(lines: tuple[str, ...]) -> bool:
    return all(len(line) <= _MAX_LINE_LENGTH and line.isascii() for line in lines)


@cache
def _modules() -> tuple[_Module, ...]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(root.glob("*.py"))
    for package in _PACKAGES:
        paths += sorted((root / package).rglob("*.py"))
    modules = (_read(root, path) for path in paths if "test" not in path.parts)
    return tuple(module for module in modules if len(module.lines) >= _MIN_MODULE_LINES)


def _read(root: Path, path: Path) -> _Module:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    text = path.read_text(encoding="utf-8", errors="replace").expandtabs()
    lines = tuple(line.rstrip() for line in text.splitlines())
    starts = [n for n, line in enumerate(lines) if line.lstrip().startswith(("def ", "class "))]
    return _Module(name, lines, tuple(starts))
