"""What the documents name is there: links, paths, modules, options of commands, make targets."""

import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from diffuspec.core.vllm_words import ALIASES, HINTS
from tests.support.documents import DOCUMENTS, ROOT, anchors, blocks, code_spans, links, prose

TOP_LEVEL = (
    *(
        "actors",
        "benchmarks",
        "clients",
        "deploy",
        "diffuspec",
        "docs",
        "protos",
        "recipes",
        "tests",
    ),
)
SOURCES = ("actors", "benchmarks", "clients", "deploy", "diffuspec", "docs")
MODULE = re.compile(rf"({'|'.join(TOP_LEVEL)})(\.\w+)+")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(env|md|proto|py|sh|toml|txt|yaml))|Makefile")
CLASS = re.compile(r"([A-Z]\w*[a-z][A-Z]\w*)(\.\w+)?(\(\))?")  # of two words: one may be text
DEPLOY = ("batch", "demo", "draft_pool", "grpc", "serve")
NOT_HERE = (  # made by commands or readers, or placeholders
    *(".venv/", "dist/", "FILE.yaml"),
    *("compare.py", "prompts.txt"),
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


everywhere = pytest.mark.parametrize("path", DOCUMENTS, ids=name)


@cache
def current_code_spans(path: Path) -> Sequence[str]:
    """Return the code spans of a document; of the changelog those that name what is there now."""
    if path.name != "CHANGELOG.md":
        return code_spans(path)
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^### Removed$.*?(?=^##)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *\|[^|\n]*\|", "|", text, flags=re.MULTILINE)  # tables of old and new names
    return re.findall(r"`([^`\n]+)`(?! ->)", text)


@everywhere
def test_every_link_within_the_repository_leads_somewhere(path: Path):
    for link in links(path):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), link
        if anchor:
            assert anchor in anchors(there), link


@everywhere
def test_items_of_lists_begin_lines(path: Path):
    assert not re.findall(r"[.)] (?:- \w|[2-9]\. \*\*).*", prose(path))


@everywhere
def test_every_path_exists(path: Path):
    for span in current_code_spans(path):
        if PATH.fullmatch(span) and span not in NOT_HERE:
            below = (ROOT, ROOT / "diffuspec", path.parent)
            is_there = any((folder / span).exists() for folder in below)
            assert is_there or ("/" not in span and span in file_names()), span


@cache
def file_names() -> set[str]:
    return {path.name for folder in TOP_LEVEL for path in (ROOT / folder).rglob("*")}


@everywhere
def test_every_class_and_call_exists(path: Path):
    for span in current_code_spans(path):
        if match := CLASS.fullmatch(span):
            assert match[1] in class_names(), span


@cache
def class_names() -> set[str]:
    """Return the names of all classes of the code, and of all services and calls of the protos."""
    sources = [path for one in SOURCES for path in (ROOT / one).rglob("*.py")]
    sources += (ROOT / "protos").rglob("*.proto")
    pattern = re.compile(r"^\s*(?:class|service|rpc|message) (\w+)", re.MULTILINE)
    return {name for path in sources for name in pattern.findall(path.read_text("utf-8"))}


@everywhere
def test_every_module_and_name_in_the_pages_exists(path: Path):
    for span in current_code_spans(path):
        if MODULE.fullmatch(span):
            assert resolve(span), span


def resolve(dotted: str) -> bool:
    """Return whether a dotted name is a module, or something that a module holds."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def commands(path: Path) -> Iterator[list[str]]:
    """Yield the words of every command line in a document: of shell blocks and code spans."""
    lines = [span for span in current_code_spans(path) if " " in span]
    for block in blocks(path):
        if block.language == "bash":
            lines += block.text.replace("\\\n", " ").splitlines()
    for line in lines:
        for part in line.split("|") if '"' not in line else [line.rpartition("| ")[2]]:
            words = shlex.split(part, comments=True) if part.count("'") % 2 == 0 else part.split()
            words = [word for word in words if "=" not in word or word.startswith("-")]
            if words:
                yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


@everywhere
def test_every_make_target_exists(path: Path):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(path):
        if words[0] == "make":
            assert set(words[1:]) <= targets, words


@everywhere
def test_every_command_has_the_options_that_are_shown(path: Path):
    for words in commands(path):
        command, rest = entry_point(words)
        if command is None:
            continue
        while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
        used = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert used <= known | {"--help"}, words


@everywhere
def test_every_option_that_is_named_alone_belongs_to_a_command(path: Path):
    programs = [["diffuspec"], *(["python", "-m", f"deploy.{one}"] for one in DEPLOY)]
    own = {option for words in programs for option in options(entry_point(words)[0])}
    known = {"--help", *ALIASES, *HINTS} | own
    for span in current_code_spans(path):
        if span.startswith("--"):
            assert span.split()[0] in known, span


def options(command: Any) -> Iterator[str]:
    """Yield the options of a command and of all its subcommands."""
    for one in command.params:
        yield from (*one.opts, *one.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from options(below)


def entry_point(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that a command line starts and its arguments; None: not one of ours."""
    if words[0] == "diffuspec":
        from diffuspec.cli.cluster import MODULES

        for name, module in MODULES.items():
            below = name.split()
            if words[1 : 1 + len(below)] == below:
                return command_of(module), words[1 + len(below) :]
        return command_of("diffuspec.cli.app"), words[1:]
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] in TOP_LEVEL:
        return command_of(words[2]), words[3:]
    return None, []


@cache
def command_of(module: str) -> Any:
    return typer.main.get_command(importlib.import_module(module).app)


def test_every_folder_of_code_has_its_place_in_the_tree_of_the_architecture() -> None:
    path = ROOT / "docs" / "architecture.md"
    [tree] = [block.text for block in blocks(path) if "  core/ " in block.text]
    sources = [
        file.relative_to(ROOT)
        for top in ("actors", "benchmarks", "clients", "deploy", "diffuspec", "recipes")
        for pattern in ("*.py", "*.cpp", "*.js", "*.yaml", "Dockerfile")
        for file in (ROOT / top).rglob(pattern)
    ]
    folders = {part for file in sources for part in file.parts[:-1]}
    assert set(re.findall(r"\w+(?=/)", tree)) == folders
